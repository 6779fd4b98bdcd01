"""A checkpoint with foreign content: the older one is used, or one line names the file. Never a traceback."""

from pathlib import Path

import pytest

from tests.containers import RunInImage
from tests.image.train_runs import Runs, line, mounts, result, run_alone

# What the newest checkpoint's damage leads to: its file or tensor in an error, or the older checkpoint.
REFUSED = {
    "lacking": "model.safetensors lacks the tensor 'bert.encoder.layer.1.output.dense.weight'",
    "reshaped": "model.safetensors has the tensor 'bert.encoder.layer.1.output.dense.weight' with the shape [3]",
    "adapter": "adapter_model.safetensors lacks the tensor 'base_model.",
    "groups": "optimizer.pt or scheduler.pt cannot be loaded (",
    "shape": "optimizer.pt or scheduler.pt cannot be loaded (exp_avg has the shape [3], expected [",
    "scheduler": "optimizer.pt or scheduler.pt cannot be loaded (",
    "random": "rng_state cannot be loaded (",
    "state": "trainer_state.json cannot be loaded (",
}
SKIPPED = {
    "optimizer": "optimizer.pt is missing or broken",
    "module": "optimizer.pt is missing or broken",
    "no generators": "rng_state.pth is missing or broken",
    "link": "it is a link to a folder that does not exist",
}
# Each with how many cases it prints.
SCRIPTS = {"expert_weights": 3, "weight_names": 6}
SAVING: dict[str, object] = {"max_steps": 4, "num_train_epochs": None, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, folder: Path) -> Runs:
    lines = {name: ["python", f"/tests/scripts/{name}.py"] for name in SCRIPTS}
    lines |= {
        name: line(f"/output/{name}", **SAVING, use_peft=name == "adapted" or None) for name in ("full", "adapted")
    }
    lines["damage"] = ["python", "/tests/scripts/damaged_checkpoints.py", "/output"]
    lines |= {
        name: line(
            f"/output/{name}",
            **{**SAVING, "max_steps": 6},
            resume_from_checkpoint="true",
            use_peft=name == "adapter" or None,
        )
        for name in (*REFUSED, *SKIPPED)
    }
    runs = run_alone(image, train_data, folder, lines)
    assert runs["damage"]["code"] == 0, runs["damage"]
    return runs


@pytest.mark.parametrize("name", REFUSED)
def test_content_that_only_loading_finds_is_one_line_that_names_the_file(runs: Runs, name: str) -> None:
    assert runs[name]["code"] == 2, runs[name]["stderr"]
    last = runs[name]["stderr"].splitlines()[-1]
    assert last.startswith(f"error: checkpoint '/output/{name}/checkpoint-4': {REFUSED[name]}")


@pytest.mark.parametrize("name", SKIPPED)
def test_content_of_something_else_is_skipped_for_the_older_checkpoint(
    runs: Runs, folder: Path, name: str
) -> None:
    assert runs[name]["code"] == 0, runs[name]["stderr"]
    assert f"checkpoint-4 is skipped: {SKIPPED[name]}" in runs[name]["stderr"]
    document = result(folder / name)
    assert document["resumed_from"].endswith("checkpoint-2")
    assert document["steps"] == 6
    assert (folder / name / "checkpoint-4" / "model.safetensors").is_file()


@pytest.mark.parametrize("name", SCRIPTS)
def test_weights_that_files_name_otherwise_are_checked_and_loaded(runs: Runs, name: str) -> None:
    assert runs[name]["code"] == 0, runs[name]["stderr"]
    assert runs[name]["stdout"].split().count("ok") == SCRIPTS[name]


def test_ranks_that_cannot_load_a_checkpoint_are_not_restarted(
    run_in_image: RunInImage, train_data: Path, folder: Path, runs: Runs
) -> None:
    assert runs
    flags = line("/output/scheduler", **{**SAVING, "max_steps": 6}, resume_from_checkpoint="true")
    launch = ("launch", "--nproc-per-node=2", "--max-restarts=2", "--", "train", *flags)
    done = run_in_image(*launch, docker_args=[*mounts(train_data, folder), "--shm-size=1g"])
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("optimizer.pt or scheduler.pt cannot be loaded") == 1
    assert "Traceback" not in done.stderr
    assert "restart" not in done.stderr
