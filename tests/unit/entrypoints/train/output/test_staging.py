"""Checkpoints are published whole, and the only one to go on from is never deleted."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from entrypoints.cli.errors import UsageError
from entrypoints.train.output import checkpoints, staging
from entrypoints.train.output import folder as output


def write_checkpoint(path: Path, whole: bool = True) -> Path:
    path.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    for name in ("optimizer.pt", "scheduler.pt"):
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("data", b"1")
    if whole:
        (path / "trainer_state.json").write_text(json.dumps({"global_step": 1}))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    write_checkpoint(staging.folder(tmp_path) / "checkpoint-10")
    assert checkpoints.all_in(tmp_path) == []
    staging.publish(tmp_path, "checkpoint-10")
    assert names(tmp_path) == ["checkpoint-10"]
    assert checkpoints.fault(tmp_path / "checkpoint-10") is None


def test_a_checkpoint_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint-10", whole=False)
    write_checkpoint(staging.folder(tmp_path) / "checkpoint-10")
    staging.publish(tmp_path, "checkpoint-10")
    assert checkpoints.last_whole(tmp_path) == (tmp_path / "checkpoint-10", [])


# Publishes a checkpoint, and is killed before its Nth change of a folder. Ends by itself where there are fewer.
KILLED = """
import os, pathlib, signal, sys
from entrypoints.train.output import staging
output, left = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def kill(event, _):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
staging.publish(output, "checkpoint-10")
staging.rotate(output, 1, None)
"""


def test_a_kill_at_any_moment_of_publishing_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """With save_total_limit 1, a step that is saved again is the only checkpoint."""
    code, moment = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        folder = tmp_path / str(moment)
        write_checkpoint(folder / "checkpoint-10")
        write_checkpoint(staging.folder(folder) / "checkpoint-10")
        argv = [sys.executable, "-c", KILLED, str(folder), str(moment)]
        code = subprocess.run(argv, check=False, timeout=60).returncode
        start = output.choose_start(folder, "true", overwrite=False)
        assert start.checkpoint == folder / "checkpoint-10", (moment, names(folder))
        output.prepare(folder, start)
        assert names(folder) == ["checkpoint-10"]
        moment += 1
    assert code == 0
    assert moment > 3


def test_what_an_earlier_process_left_half_written_is_taken_away_at_the_next_start(tmp_path: Path) -> None:
    write_checkpoint(staging.folder(tmp_path) / "checkpoint-10", whole=False)
    output.prepare(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("limit", "best", "kept"),
    [
        (None, None, [5, 10, 15, 20]),
        (0, None, [5, 10, 15, 20]),
        (2, None, [15, 20]),
        (1, None, [20]),
        (2, 5, [5, 20]),
        (1, 10, [10, 20]),
    ],
)
def test_the_oldest_beyond_the_limit_go_but_not_the_best(
    tmp_path: Path, limit: int | None, best: int | None, kept: list[int]
) -> None:
    for step in (5, 10, 15, 20):
        write_checkpoint(tmp_path / f"checkpoint-{step}")
    staging.rotate(tmp_path, limit, str(tmp_path / f"checkpoint-{best}") if best else None)
    assert sorted(map(checkpoints.step_of, tmp_path.iterdir())) == kept


def test_the_only_whole_checkpoint_stays_although_newer_ones_are_there(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint-5")
    write_checkpoint(tmp_path / "checkpoint-10", whole=False)
    write_checkpoint(tmp_path / "checkpoint-15", whole=False)
    staging.rotate(tmp_path, 1, None)
    assert checkpoints.last_whole(tmp_path)[0] == tmp_path / "checkpoint-5"


def test_the_error_of_a_full_disk_names_the_rank_its_node_and_the_checkpoint_to_resume_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "checkpoint-10")
    write_checkpoint(staging.folder(tmp_path) / "checkpoint-20", whole=False)
    monkeypatch.setattr(staging, "_FULL_BYTES", 1 << 62)
    told = staging.failed(tmp_path, 20, RuntimeError("write failed"))
    assert isinstance(told, UsageError)
    for text in ("rank 0 on ", "is full", "step 20 (write failed)", "resume from checkpoint-10"):
        assert text in str(told)
    assert names(tmp_path) == ["checkpoint-10"]


def test_another_failure_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    assert staging.failed(tmp_path, 20, RuntimeError("something else")) is None
