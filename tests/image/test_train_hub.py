"""--push_to_hub: what is pushed, and the errors of pushes that fail."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tests.image.train_runs import ONE_THREAD, line, mounts, result, reviews

ACCESS = "hf_abc"
LINES = {
    "pushed": line(
        "/output/pushed",
        max_steps=2,
        save_strategy="steps",
        save_steps=2,
        hub_model_id="me/pushed",
        hub_strategy="checkpoint",
        prediction_loss_only=True,
        push_to_hub=True,
        hub_token=ACCESS,
    ),
    "full": line("/output/full", max_steps=1, hub_model_id="me/full", push_to_hub=True),
    "another's": line("/output/other", hub_model_id="other/model", push_to_hub=True),
    "no network": line("/output/none", push_to_hub=True),
}


@pytest.fixture(scope="module")
def pushes(
    image: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[Any], Path]:
    """What each run printed and returned, what came to the hub, and the folder that they wrote to."""
    data, output = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("output")
    for folder in (data, output):
        folder.chmod(0o777)
    (data / "train.csv").write_text(reviews(22))
    (data / "eval.csv").write_text(reviews(13))
    (data / "lines").write_text(json.dumps(list(LINES.values())))
    shutil.copytree(tiny_model, data / "tiny")
    environment, folders = {"HF_TOKEN": "hf_secret", **ONE_THREAD}, mounts(data, output, read_only=False)
    done = containers.run(
        image, "python", "/tests/small_hub.py", "/data/lines", env=environment, docker_args=folders
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    return dict(zip(LINES, document["runs"], strict=True)), document["commits"], output


def test_complete_checkpoints_and_the_model_are_pushed_without_unfinished_files(pushes: Any) -> None:
    runs, commits, output = pushes
    assert runs["pushed"]["code"] == 0, runs["pushed"]["stderr"]
    model, checkpoint, saved = commits
    assert {"config.json", "model.safetensors"} <= set(model) & set(saved)
    assert not [name for name in (*model, *saved) if "/" in name or name.startswith((".", "_"))]
    assert "last-checkpoint/trainer_state.json" in checkpoint
    assert {name.partition("/")[0] for name in checkpoint} == {"last-checkpoint"}
    assert (output / "pushed" / "model.safetensors").stat().st_mode & 0o777 == 0o644
    assert "training_args.bin" in saved
    files = [path for path in (output / "pushed").rglob("*") if path.is_file()]
    assert not [path for path in files if ACCESS.encode() in path.read_bytes()]


def test_an_evaluation_of_the_loss_alone_counts_its_rows(pushes: Any) -> None:
    runs, _, output = pushes
    assert "(13 rows)" in runs["pushed"]["stderr"]
    assert "(0 rows)" not in runs["pushed"]["stderr"]
    assert result(output / "pushed")["eval_samples"] == 13


@pytest.mark.parametrize("name", ["another's", "no network"])
def test_a_hub_without_write_access_is_reported_before_training(pushes: Any, name: str) -> None:
    runs, _, output = pushes
    assert runs[name]["code"] == 2
    assert "Traceback" not in runs[name]["stderr"]
    assert "training:" not in runs[name]["stderr"]
    (message,) = [text for text in runs[name]["stderr"].splitlines() if text.startswith("error: ")]
    assert "cannot write to" in message
    assert "hf_secret" not in message
    assert not (output / LINES[name][LINES[name].index("--output_dir") + 1].rpartition("/")[2]).exists()


def test_a_push_that_fails_after_training_loses_nothing(pushes: Any) -> None:
    runs, _, output = pushes
    assert runs["full"]["code"] == 1
    assert "Traceback" not in runs["full"]["stderr"]
    (message,) = [text for text in runs["full"]["stderr"].splitlines() if text.startswith("error: ")]
    assert message.endswith(
        "push them with hf upload me/full /output/full --exclude 'checkpoint-*' --exclude '_*', with HF_TOKEN set"
    )
    assert result(output / "full")["steps"] == 1
    assert (output / "full" / "model.safetensors").is_file()
