"""Every field of TrainingArguments takes effect on two ranks, or is refused in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tests.image.train_fields import CASES, Case, name_of
from tests.image.train_runs import mounts, result, reviews

# Given to every run.
COMMON_FIELDS = {"output_dir", "do_train", "do_eval"}


@pytest.fixture(scope="module")
def tried(image: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """All cases, by two ranks that train one after another; and the folder that they wrote to."""
    data, output = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("output")
    for folder in (data, output):
        folder.chmod(0o777)
    (data / "train.csv").write_text(reviews(22))
    (data / "eval.csv").write_text(reviews(13))
    shutil.copytree(tiny_model, data / "tiny")
    shutil.copytree(tiny_model, data / "renamed")
    config = json.loads((data / "renamed" / "config.json").read_text())
    (data / "renamed" / "config.json").write_text(json.dumps({**config, "id2label": {"0": "good", "1": "bad"}}))
    job = ("run", "--no-adapt=all", "--backend=gloo", "--timeout=60", "/tests/train_fields.py", "/output/results")
    nowhere, folders = {"HF_ENDPOINT": "http://127.0.0.1:9"}, mounts(data, output, read_only=False)
    done = containers.run(image, "launch", "--nproc-per-node=2", "--", *job, env=nowhere, docker_args=folders)
    document = json.loads((output / "results").read_text())
    assert len(document["runs"]) == len(CASES), (name_of(CASES[len(document["runs"]) - 1]), done.stderr)
    return document, output


def test_every_field_is_tried(tried: Any) -> None:
    assert {name for case in CASES for name in case.fields} | COMMON_FIELDS == set(tried[0]["fields"])


def test_a_sharded_run_that_is_resumed_keeps_the_head_of_its_checkpoint(tried: Any) -> None:
    full, resumed = (result(tried[1] / number) for number in ("1", "2"))
    assert (full["fsdp"], resumed["resumed_from"]) == (True, "/output/1/checkpoint-1")
    assert resumed["losses"] == full["losses"]
    assert resumed["weights_sha256"] == full["weights_sha256"]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_field_takes_effect_or_is_refused_in_one_line(tried: Any, case: Case) -> None:
    document, output = tried
    number = CASES.index(case)
    done = document["runs"][number]
    errors = [text for text in done["stderr"].splitlines() if text.startswith("error: ")]
    assert "Traceback" not in done["stderr"]
    if done["code"] == 2 and case.refused:
        assert len(errors) == 1
        assert case.refused in errors[0]
        assert (output / str(number)).exists() is case.late
        return
    assert done["code"] == 0, done["stderr"]
    assert case.prints in done["stderr"]
    assert case.prints or not case.refused
    found, plain = result(output / str(number)), result(output / "0")
    assert len(set(found["weights_sha256"])) == 1
    assert found["eval_samples"] == 13
    if case.same is not None:
        assert (found["weights_sha256"] == plain["weights_sha256"]) is case.same
    if case.same and "--bf16_full_eval" not in case.flags:  # which rounds the weights of the evaluation
        assert found["metrics"]["eval_loss"] == pytest.approx(plain["metrics"]["eval_loss"], rel=1e-5)
    if "--prediction_loss_only" in case.flags:
        assert "eval_accuracy" not in found["metrics"]
    for name in case.leaves:
        assert (output / str(number) / name).exists()
