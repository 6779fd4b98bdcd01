"""Where a run begins, and when its output folder is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from entrypoints.errors import UsageError
from entrypoints.train import output, results
from tests.unit.test_train_checkpoints import cut, whole


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
    (tmp_path / "finished" / results.NAME).write_text("{}")
    with pytest.raises(UsageError, match="holds an earlier run"):
        output.choose_start(tmp_path / "finished", None, overwrite=False)


def test_resuming_without_a_checkpoint_begins_anew_with_a_note(tmp_path: Path) -> None:
    start = output.choose_start(tmp_path, "true", overwrite=False)
    assert start.checkpoint is None
    assert "starting from the pretrained model" in start.notes[0]


def test_an_explicit_checkpoint_must_be_whole(tmp_path: Path) -> None:
    path = whole(tmp_path, 3)
    assert output.choose_start(tmp_path / "new", str(path), overwrite=False).checkpoint == path
    cut(path / "model.safetensors")
    with pytest.raises(UsageError, match=r"model\.safetensors is missing or broken"):
        output.choose_start(tmp_path / "new", str(path), overwrite=False)
    with pytest.raises(UsageError, match="there is no such folder"):
        output.choose_start(tmp_path / "new", str(tmp_path / "none"), overwrite=False)


def test_overwriting_takes_away_checkpoints_and_result_and_nothing_else(tmp_path: Path) -> None:
    whole(tmp_path, 3)
    (tmp_path / results.NAME).write_text("{}")
    (tmp_path / "mine.txt").write_text("keep")
    output.prepare(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_resumed_run_loses_its_old_result_but_not_its_checkpoints(tmp_path: Path) -> None:
    whole(tmp_path, 3)
    (tmp_path / results.NAME).write_text("{}")
    output.prepare(tmp_path, overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_a_folder_that_the_same_job_has_written_to_is_gone_on_with(tmp_path: Path) -> None:
    assert not output.restarted({output.JOB: "team/bert/1"}, tmp_path / "none")
    output.prepare(tmp_path, overwrite=False, job="team/bert/1")
    assert output.restarted({output.JOB: "team/bert/1"}, tmp_path)
    for another in ({}, {output.JOB: ""}, {output.JOB: "team/bert/2"}):
        assert not output.restarted(another, tmp_path)


def test_a_folder_that_cannot_be_made_or_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file, expected a folder"):
        output.choose_start(tmp_path / "file", None, overwrite=False)
    with pytest.raises(UsageError, match=f"cannot be written to by user {os.getuid()}"):
        output.prepare(tmp_path / "file" / "x", overwrite=False)


def test_a_checkpoint_of_another_model_or_with_other_labels_is_refused(tmp_path: Path) -> None:
    path = whole(tmp_path, 3)
    (path / "config.json").write_text(json.dumps({"model_type": "bert", "id2label": {"0": "no", "1": "yes"}}))
    output.check_same_model(path, {"model_type": "bert", "id2label": {0: "no", 1: "yes"}})
    with pytest.raises(UsageError, match="id2label"):
        output.check_same_model(path, {"model_type": "bert", "id2label": {0: "neg", 1: "pos"}})
    with pytest.raises(UsageError, match="model_type"):
        output.check_same_model(path, {"model_type": "roberta", "id2label": {0: "no", 1: "yes"}})
