"""Where a run begins, and when its output folder is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.train.output import folder as output
from entrypoints.train.output import result
from tests.unit.entrypoints.train.output.test_checkpoints import cut, whole


def names(folder: Path) -> list[str]:
    """What is in a folder beside the name of its job."""
    return sorted(path.name for path in folder.iterdir() if path.name != "_job")


def test_an_empty_or_missing_folder_begins_at_the_pretrained_model(tmp_path: Path) -> None:
    assert output.choose_start(tmp_path, None, overwrite=False).checkpoint is None
    assert output.choose_start(tmp_path / "none", "false", overwrite=False).checkpoint is None


def test_a_folder_that_holds_a_run_is_refused_unless_it_is_resumed_or_overwritten(tmp_path: Path) -> None:
    checkpoint = whole(tmp_path, 3)
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path, None, overwrite=False)
    assert output.choose_start(tmp_path, None, overwrite=True).checkpoint is None
    assert output.choose_start(tmp_path, "True", overwrite=False).checkpoint == checkpoint
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / result.NAME).write_text("{}")
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path / "finished", None, overwrite=False)


def test_resuming_without_a_checkpoint_starts_over_with_a_note(tmp_path: Path) -> None:
    start = output.choose_start(tmp_path, "true", overwrite=False)
    assert start.checkpoint is None
    assert "starting from the pretrained model" in start.notes[0]


def test_an_explicit_checkpoint_must_be_complete(tmp_path: Path) -> None:
    path = whole(tmp_path, 3)
    assert output.choose_start(tmp_path / "new", str(path), overwrite=False).checkpoint == path
    cut(path / "model.safetensors")
    with pytest.raises(UsageError, match=r"model\.safetensors is missing or broken"):
        output.choose_start(tmp_path / "new", str(path), overwrite=False)
    with pytest.raises(UsageError, match="there is no such folder"):
        output.choose_start(tmp_path / "new", str(tmp_path / "none"), overwrite=False)


def test_overwriting_takes_away_checkpoints_and_result_and_nothing_else(tmp_path: Path) -> None:
    whole(tmp_path, 3)
    (tmp_path / result.NAME).write_text("{}")
    (tmp_path / "mine.txt").write_text("keep")
    output.prepare(tmp_path, output.choose_start(tmp_path, None, overwrite=True))
    assert names(tmp_path) == ["mine.txt"]


@pytest.mark.parametrize("resume", ["true", "checkpoint-5"])
def test_overwriting_leaves_the_checkpoint_that_the_run_begins_with(tmp_path: Path, resume: str) -> None:
    for step in (3, 5):
        whole(tmp_path, step)
    asked = resume if resume == "true" else str(tmp_path / resume)
    output.prepare(tmp_path, output.choose_start(tmp_path, asked, overwrite=True))
    assert names(tmp_path) == ["checkpoint-5"]


def test_a_resumed_run_loses_its_old_result_but_not_its_checkpoints(tmp_path: Path) -> None:
    whole(tmp_path, 3)
    (tmp_path / result.NAME).write_text("{}")
    output.prepare(tmp_path, output.choose_start(tmp_path, "true", overwrite=False))
    assert names(tmp_path) == ["checkpoint-3"]


def test_an_explicit_checkpoint_never_stands_among_another_runs(tmp_path: Path) -> None:
    """A restart takes the last one in the folder, which has to be of the same run."""
    early, late = (str(whole(tmp_path, step)) for step in (3, 5))
    with pytest.raises(UsageError, match="holds checkpoint-5, later than"):
        output.choose_start(tmp_path, early, overwrite=False)
    assert output.choose_start(tmp_path, late, overwrite=False).checkpoint == Path(late)
    other = whole(tmp_path / "other", 9)
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path, str(other), overwrite=False)
    cut(Path(late) / "optimizer.pt")  # a broken one is never gone on from
    assert output.choose_start(tmp_path, early, overwrite=False).checkpoint == Path(early)


AGENT = "/tmp/torchelastic_a1/none_b2"
MINE = {contract.JOB: "team/bert/1"}


def test_a_job_has_one_name_at_every_start_by_its_launcher_and_none_without_one() -> None:
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


def test_a_restart_goes_on_with_its_own_checkpoints_whatever_the_flags_say(tmp_path: Path) -> None:
    name = output.job_name(MINE, {})
    for overwrite in (False, True):
        folder, old = tmp_path / str(overwrite), whole(tmp_path / f"old-{overwrite}", 9)
        for resume in (None, "true", str(old)):
            first = output.choose_start(folder, resume, overwrite=overwrite, jobs=[name, ""])
            output.prepare(folder, first, [name, ""])
        # Before its first checkpoint it begins as it was asked to.
        start = output.choose_start(folder, str(old), overwrite, [name])
        assert (start.checkpoint, start.replaces) == (old, False)
        assert "no checkpoint of this job" in start.notes[0]
        mine = whole(folder, 3)
        for resume in (None, "true", str(old)):
            start = output.choose_start(folder, resume, overwrite, ["another node's agent", name])
            assert (start.checkpoint, start.replaces) == (mine, False)


@pytest.mark.parametrize("other", [[], [""], [output.job_name({contract.JOB: "team/bert/2"}, {})]])
def test_a_restart_never_goes_on_with_another_jobs_checkpoints(tmp_path: Path, other: list[str]) -> None:
    name = output.job_name(MINE, {})
    output.prepare(tmp_path, output.Start(None), other)
    whole(tmp_path, 3)
    for _ in range(2):  # the first start and its restart, both before the folder was prepared
        with pytest.raises(UsageError, match="holds an earlier run"):
            output.choose_start(tmp_path, None, overwrite=False, jobs=[name])
        start = output.choose_start(tmp_path, None, overwrite=True, jobs=[name])
        assert (start.checkpoint, start.replaces) == (None, True)
    # A folder that somebody else has used since is not this job's any more.
    output.prepare(tmp_path, start, [name])
    output.prepare(tmp_path, output.Start(None), other)
    whole(tmp_path, 5)
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path, None, overwrite=False, jobs=[name])


def test_a_folder_that_cannot_be_created_or_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, expected a folder"):
        output.choose_start(tmp_path / "file", None, overwrite=False)
    with pytest.raises(UsageError, match=f"cannot be written to by user {os.getuid()}"):
        output.prepare(tmp_path / "file" / "x")


def test_a_checkpoint_of_another_model_or_with_other_labels_is_refused(tmp_path: Path) -> None:
    path = whole(tmp_path, 3)
    (path / "config.json").write_text(json.dumps({"model_type": "bert", "id2label": {"0": "no", "1": "yes"}}))
    output.check_same_model(path, {"model_type": "bert", "id2label": {0: "no", 1: "yes"}})
    with pytest.raises(UsageError, match="id2label"):
        output.check_same_model(path, {"model_type": "bert", "id2label": {0: "neg", 1: "pos"}})
    with pytest.raises(UsageError, match="model_type"):
        output.check_same_model(path, {"model_type": "roberta", "id2label": {0: "no", 1: "yes"}})
