"""Where a run starts, and when its output folder is refused."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.output import checkpoints
from cpu_train_stack.train.output import folder as output
from tests.unit.entrypoints.train.output.test_checkpoints import complete, cut


def names(folder: Path) -> list[str]:
    """The files of a folder, without the names of its job."""
    return sorted(path.name for path in folder.iterdir() if path.name != "_job")


def test_an_empty_or_missing_folder_starts_at_the_pretrained_model(tmp_path: Path) -> None:
    assert output.choose_start(tmp_path, None, overwrite=False).checkpoint is None
    assert output.choose_start(tmp_path / "none", "false", overwrite=False).checkpoint is None


def test_a_folder_that_holds_a_run_is_refused_unless_it_is_resumed_or_overwritten(tmp_path: Path) -> None:
    checkpoint = complete(tmp_path, 3)
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path, None, overwrite=False)
    assert output.choose_start(tmp_path, None, overwrite=True).checkpoint is None
    assert output.choose_start(tmp_path, "True", overwrite=False).checkpoint == checkpoint
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / output.RESULT).write_text("{}")
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path / "finished", None, overwrite=False)


def test_resuming_without_a_checkpoint_starts_at_the_pretrained_model_with_a_note(tmp_path: Path) -> None:
    start = output.choose_start(tmp_path, "true", overwrite=False)
    assert start.checkpoint is None
    assert "starting from the pretrained model" in start.notes[0]


def test_an_explicit_checkpoint_must_be_complete(tmp_path: Path) -> None:
    path = complete(tmp_path, 3)
    assert output.choose_start(tmp_path / "new", str(path), overwrite=False).checkpoint == path
    cut(path / "model.safetensors")
    with pytest.raises(UsageError, match=r"model\.safetensors is missing or broken"):
        output.choose_start(tmp_path / "new", str(path), overwrite=False)
    with pytest.raises(UsageError, match="the folder does not exist"):
        output.choose_start(tmp_path / "new", str(tmp_path / "none"), overwrite=False)


def test_overwriting_deletes_checkpoints_and_result_and_nothing_else(tmp_path: Path) -> None:
    complete(tmp_path, 3)
    (tmp_path / output.RESULT).write_text("{}")
    (tmp_path / "mine.txt").write_text("keep")
    output.prepare(tmp_path, output.choose_start(tmp_path, None, overwrite=True))
    assert names(tmp_path) == ["mine.txt"]


@pytest.mark.parametrize("resume", ["true", "checkpoint-5"])
def test_overwriting_keeps_the_checkpoint_at_which_the_run_starts(tmp_path: Path, resume: str) -> None:
    for step in (3, 5):
        complete(tmp_path, step)
    asked = resume if resume == "true" else str(tmp_path / resume)
    output.prepare(tmp_path, output.choose_start(tmp_path, asked, overwrite=True))
    assert names(tmp_path) == ["checkpoint-5"]


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00002.safetensors", "adapter_config.json"])
def test_a_model_that_training_would_mix_with_its_own_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match="holds a model: choose another folder, or add --overwrite_output_dir"):
        output.choose_start(tmp_path, None, overwrite=False)
    output.choose_start(tmp_path, None, overwrite=False, trains=False)
    output.choose_start(tmp_path, None, overwrite=True)


def test_a_model_that_the_run_starts_from_is_not_deleted(tmp_path: Path) -> None:
    """A merged model, a checkpoint, and the base of an adapter."""
    checkpoint, merged, adapter = complete(tmp_path, 3), tmp_path / "merged", tmp_path / "adapter"
    merged.mkdir()
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(merged)}))
    start = output.choose_start(tmp_path, None, overwrite=True)
    for model in (checkpoint, merged, adapter):
        with pytest.raises(UsageError, match="--overwrite_output_dir deletes the model"):
            output.check_kept(tmp_path, start, str(model))
    output.check_kept(tmp_path, start, "some/model")
    output.prepare(tmp_path, start)
    assert names(tmp_path) == ["adapter"]


def test_a_resumed_run_loses_its_old_result_but_not_its_checkpoints(tmp_path: Path) -> None:
    complete(tmp_path, 3)
    (tmp_path / output.RESULT).write_text("{}")
    output.prepare(tmp_path, output.choose_start(tmp_path, "true", overwrite=False))
    assert names(tmp_path) == ["checkpoint-3"]


def test_an_explicit_checkpoint_is_never_mixed_with_those_of_another_run(tmp_path: Path) -> None:
    """A restart resumes from the last checkpoint in the folder, which must be of the same run."""
    early, late = (str(complete(tmp_path, step)) for step in (3, 5))
    with pytest.raises(UsageError, match="holds checkpoint-5, later than"):
        output.choose_start(tmp_path, early, overwrite=False)
    assert output.choose_start(tmp_path, late, overwrite=False).checkpoint == Path(late)
    other = complete(tmp_path / "other", 9)
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path, str(other), overwrite=False)
    cut(Path(late) / "optimizer.pt")  # a run never resumes from a broken checkpoint
    assert output.choose_start(tmp_path, early, overwrite=False).checkpoint == Path(early)


AGENT = "/tmp/torchelastic_a1/none_b2"
MINE = {contract.JOB: "team/bert/1"}


def test_a_job_has_the_same_name_after_a_restart_and_no_name_without_a_launcher() -> None:
    flags = {"learning_rate": 0.1}
    first, again, another = (
        output.job_name({"TORCHELASTIC_ERROR_FILE": f"{folder}/attempt_{attempt}/0/error.json"}, flags)
        for folder, attempt in ((AGENT, 0), (AGENT, 1), (f"{AGENT}c", 0))
    )
    assert first == again != another
    assert first != output.job_name({"TORCHELASTIC_ERROR_FILE": f"{AGENT}/attempt_0/0/error.json"}, {})
    assert output.job_name({**MINE, "TORCHELASTIC_ERROR_FILE": f"{AGENT}/attempt_0/0/error.json"}, flags) == (
        output.job_name(MINE, flags)
    )
    assert output.job_name({}, flags) == output.job_name({"TORCHELASTIC_ERROR_FILE": "/dev/null"}, flags) == ""


def test_a_restart_resumes_from_its_own_checkpoint_regardless_of_the_flags(tmp_path: Path) -> None:
    name = output.job_name(MINE, {})
    for overwrite in (False, True):
        folder, old = tmp_path / str(overwrite), complete(tmp_path / f"old-{overwrite}", 9)
        for resume in (None, "true", str(old)):
            first = output.choose_start(folder, resume, overwrite=overwrite, jobs=[name, ""])
            output.prepare(folder, first, [name, ""])
        # Before its first checkpoint, it starts as the flags specify.
        start = output.choose_start(folder, str(old), overwrite, [name])
        assert (start.checkpoint, start.replaces) == (old, False)
        assert "no checkpoint of this job" in start.notes[0]
        mine = complete(folder, 3)
        for resume in (None, "true", str(old)):
            start = output.choose_start(folder, resume, overwrite, ["another node's agent", name])
            assert (start.checkpoint, start.replaces) == (mine, False)


@pytest.mark.parametrize("resume", [None, "true"])
def test_a_restart_without_a_complete_checkpoint_says_why(tmp_path: Path, resume: str | None) -> None:
    name = output.job_name(MINE, {})
    output.prepare(tmp_path, output.choose_start(tmp_path, None, overwrite=False, jobs=[name]), [name])
    (complete(tmp_path, 3) / "optimizer.pt").unlink()  # as with --save_only_model
    notes = output.choose_start(tmp_path, resume, overwrite=False, jobs=[name]).notes
    assert notes[0] == "checkpoint-3 is skipped: optimizer.pt is missing or broken"
    assert "no checkpoint of this job" in notes[1]
    assert sum("is skipped" in note for note in notes) == 1


@pytest.mark.parametrize("other", [[], [""], [output.job_name({contract.JOB: "team/bert/2"}, {})]])
def test_a_restart_never_resumes_from_a_checkpoint_of_another_job(tmp_path: Path, other: list[str]) -> None:
    name = output.job_name(MINE, {})
    output.prepare(tmp_path, output.RunStart(None), other)
    complete(tmp_path, 3)
    for _ in range(2):  # the first start and its restart, both before the folder was prepared
        with pytest.raises(UsageError, match="holds an earlier run"):
            output.choose_start(tmp_path, None, overwrite=False, jobs=[name])
        start = output.choose_start(tmp_path, None, overwrite=True, jobs=[name])
        assert (start.checkpoint, start.replaces) == (None, True)
    # A folder that another job has used since does not belong to this job.
    output.prepare(tmp_path, start, [name])
    output.prepare(tmp_path, output.RunStart(None), other)
    complete(tmp_path, 5)
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path, None, overwrite=False, jobs=[name])


def test_a_folder_that_cannot_be_created_or_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, expected a folder"):
        output.choose_start(tmp_path / "file", None, overwrite=False)
    with pytest.raises(UsageError, match=f"cannot be written to by user {os.getuid()}"):
        output.prepare(tmp_path / "file" / "x")


def test_a_full_folder_is_refused_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(UsageError, match=r"No space left on device\): free some space, or choose another folder"):
        output.prepare(tmp_path / "new")


def test_a_checkpoint_of_another_model_or_with_other_labels_is_refused(tmp_path: Path) -> None:
    path = complete(tmp_path, 3)
    (path / "config.json").write_text(json.dumps({"model_type": "bert", "id2label": {"0": "no", "1": "yes"}}))
    checkpoints.check_same_model(path, {"model_type": "bert", "id2label": {0: "no", 1: "yes"}})
    with pytest.raises(UsageError, match="id2label"):
        checkpoints.check_same_model(path, {"model_type": "bert", "id2label": {0: "neg", 1: "pos"}})
    with pytest.raises(UsageError, match="model_type"):
        checkpoints.check_same_model(path, {"model_type": "roberta", "id2label": {0: "no", 1: "yes"}})


def test_weights_that_cannot_get_another_mode_do_not_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an SMB share whose mount has another user, such as Azure Files in Kubernetes."""
    refused = []

    def refuse(path: Path, _mode: int) -> None:
        refused.append(path.name)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    (tmp_path / "model.safetensors").touch()
    output.share_weights(tmp_path)
    assert refused == ["model.safetensors"]
