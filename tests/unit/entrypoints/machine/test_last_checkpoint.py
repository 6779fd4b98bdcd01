"""The first SIGTERM of a launcher or a rank: when it asks for a checkpoint, and when the job ends at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine import last_checkpoint, processes
from cpu_train_stack.machine.last_checkpoint import LastCheckpoint


@pytest.fixture
def ended() -> Iterator[list[int]]:
    """The signals that ended the job, which the earlier handler gets."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: found.append(number))
    yield found
    signal.alarm(0)
    signal.signal(signal.SIGTERM, before)


def started(folder: Path, seconds: str, *, trains: bool = True) -> LastCheckpoint:
    rank: Any = last_checkpoint.ready_file({contract.DRAIN: str(folder)})
    if trains:
        rank.touch()
    launcher = LastCheckpoint(folder, {contract.GRACE_SECONDS: seconds})
    launcher.handle()
    launcher.handle()  # a restart of the ranks
    return launcher


def asked(folder: Path) -> bool:
    return any(file.exists() for file in last_checkpoint.files_of({contract.DRAIN: str(folder)}))


def test_ranks_that_train_are_asked_first(tmp_path: Path, ended: list[int]) -> None:
    started(tmp_path, "60")
    assert not asked(tmp_path)
    signal.raise_signal(signal.SIGTERM)
    assert (asked(tmp_path), ended) == (True, [])
    signal.raise_signal(signal.SIGTERM)
    assert ended == [signal.SIGTERM]


def test_after_the_grace_period_the_job_ends(tmp_path: Path, ended: list[int]) -> None:
    started(tmp_path, "1")
    signal.raise_signal(signal.SIGTERM)
    signal.sigtimedwait([], 1.5)
    assert ended == [signal.SIGTERM]


def test_ranks_that_have_failed_do_not_delay_the_end(tmp_path: Path, ended: list[int]) -> None:
    started(tmp_path, "60").forget_ranks()
    signal.raise_signal(signal.SIGTERM)
    assert (asked(tmp_path), ended) == (False, [signal.SIGTERM])


@pytest.mark.parametrize(("seconds", "trains"), [("0", True), ("60", False)])
def test_without_time_or_training_the_job_ends_at_once(
    tmp_path: Path, ended: list[int], seconds: str, trains: bool
) -> None:
    started(tmp_path, seconds, trains=trains)
    signal.raise_signal(signal.SIGTERM)
    assert (asked(tmp_path), ended) == (False, [signal.SIGTERM])


@pytest.mark.parametrize("text", ["-1", "1.5", "soon", "99999999", "\u0663"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=contract.GRACE_SECONDS):
        last_checkpoint.grace_seconds({contract.GRACE_SECONDS: text})


# A rank that waits in a collective, beside a process of its data loader.
RANK = """
import ctypes, os, sys
from pathlib import Path
from cpu_train_stack.machine.last_checkpoint import LastCheckpoint
LastCheckpoint(Path(sys.argv[1]), os.environ).handle_in_thread()
child = os.fork()
if child:
    print(child, flush=True)
while True:
    ctypes.CDLL(None).sleep(60)
"""


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("trains", "seconds"), [(True, "60"), (True, "2"), (True, "0"), (False, "60")])
def test_a_rank_that_waits_in_a_collective_is_asked(tmp_path: Path, trains: bool, seconds: str) -> None:
    folder = tmp_path / "drain"
    folder.mkdir()
    if trains:
        (folder / last_checkpoint.READY).touch()
    argv = [sys.executable, "-c", RANK, str(folder)]
    environ = {**os.environ, contract.GRACE_SECONDS: seconds}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        child = int(rank.stdout.readline())
        os.kill(child, signal.SIGTERM)
        until(lambda: processes.state(child) == "Z")
        assert rank.poll() is None
        rank.terminate()
        if trains and seconds != "0":
            until(lambda: asked(folder))
        if seconds == "60":
            rank.terminate()
        assert rank.wait(10) == -signal.SIGTERM
    assert not folder.exists()
