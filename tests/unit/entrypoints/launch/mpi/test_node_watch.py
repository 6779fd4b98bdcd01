"""The watch on a node, with real processes: its reports, and that it leaves no process."""

from __future__ import annotations

import json
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
from cpu_train_stack.cli import account
from cpu_train_stack.launch.mpi import hydra, node_watch, rank_parent
from cpu_train_stack.machine import last_checkpoint, processes
from tests.unit.entrypoints import ROOT

# A watch that sends nothing would block a test.
pytestmark = pytest.mark.timeout(60)


class Watched:
    """A watch as ssh runs it, and ranks as mpirun does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cpu_train_stack.launch.mpi.node_watch", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.ranks: list[subprocess.Popen[bytes]] = []

    def event(self) -> dict[str, Any]:
        """The next event that the watch sends."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the watch has ended"
        document: dict[str, Any] = json.loads(line)
        return document

    def start(self, rank: int, *command: str) -> subprocess.Popen[bytes]:
        """A rank's parent with `command` as the rank."""
        environ = {**os.environ, contract.WATCH: str(self.folder), "PMI_RANK": str(rank), "PMI_SIZE": "2"}
        environ.update({"MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2"})
        argv = [sys.executable, "-m", "cpu_train_stack.launch.mpi.rank_parent", *command]
        member = subprocess.Popen(argv, env=environ, cwd=ROOT, start_new_session=True)
        self.ranks.append(member)
        return member

    def pid_of(self, rank: int) -> int:
        """The PID of a rank, once its parent has written it."""
        deadline = time.monotonic() + 20
        while rank not in node_watch.read(self.folder):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return node_watch.read(self.folder)[rank].pid

    def close(self) -> None:
        """Close standard input, as at the end of the job and when the launcher is lost."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[[], Watched]]:
    watches: list[Watched] = []

    def begin() -> Watched:
        watches.append(Watched(tmp_path / "ranks"))
        assert watches[-1].event() == {"state": "ready"}
        return watches[-1]

    yield begin
    for watch in watches:
        for member in watch.ranks:
            member.kill()
            member.wait()
        watch.process.kill()
        watch.process.wait()


def test_a_ranks_exit_code_is_reported_with_its_rank_and_time(watched: Callable[[], Watched]) -> None:
    watch = watched()
    began = time.time()
    assert watch.start(1, "sh", "-c", "exit 7").wait(20) == 7
    event = watch.event()
    assert began < event.pop("at") < time.time()
    assert event == {"rank": 1, "local_rank": 1, "state": "ended", "code": 7, "out_of_memory": False}


def test_a_rank_gets_the_colon_that_mpirun_would_take_for_another_program(
    watched: Callable[[], Watched],
) -> None:
    words = hydra.escape(["sh", "-c", 'test "$1" = : && test "$2" = ::', "sh", ":", "::"])
    assert watched().start(0, *words).wait(20) == 0


def test_a_killed_rank_is_reported_with_its_signal(watched: Callable[[], Watched]) -> None:
    watch = watched()
    member = watch.start(0, "sleep", "60")
    os.kill(watch.pid_of(0), signal.SIGKILL)
    assert member.wait(20) == 128 + signal.SIGKILL
    assert watch.event()["code"] == -signal.SIGKILL


def test_the_end_of_the_nodes_container_is_reported(
    tmp_path: Path, watched: Callable[[], Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.NODE_ENDS, str(tmp_path / "ends"))
    watch = watched()
    (tmp_path / "ends").touch()
    assert watch.event() == {"state": "must_end"}


def test_a_watch_waits_for_ranks_of_an_earlier_launcher_that_save(
    tmp_path: Path, watched: Callable[[], Watched]
) -> None:
    first = watched()
    assert first.process.stdin is not None
    first.process.stdin.write("save\n")
    first.process.stdin.flush()
    stop = first.folder / last_checkpoint.STOP
    deadline = time.monotonic() + 20
    while not stop.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = Watched(tmp_path / "later-ranks")
    try:
        assert second.event() == {"state": "busy"}
        first.close()
        assert second.event() == {"state": "ready"}
    finally:
        second.close()


def test_watches_of_two_jobs_run_side_by_side(tmp_path: Path, watched: Callable[[], Watched]) -> None:
    watched()
    other = Watched(tmp_path / "other-ranks")
    assert other.event() == {"state": "ready"}
    other.close()


def test_a_stopped_rank_is_reported_once(watched: Callable[[], Watched]) -> None:
    watch = watched()
    watch.start(0, "sleep", "60")
    os.kill(watch.pid_of(0), signal.SIGSTOP)
    assert watch.event() == {"rank": 0, "local_rank": 0, "state": "stopped"}
    os.kill(watch.pid_of(0), signal.SIGKILL)
    assert watch.event()["state"] == "ended"


def test_no_rank_and_no_file_outlives_the_launcher(watched: Callable[[], Watched]) -> None:
    watch = watched()
    watch.start(0, "sleep", "60")
    # Ignores SIGTERM, like a rank in the middle of a collective.
    watch.start(1, sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)")
    ranks = [watch.pid_of(0), watch.pid_of(1)]
    time.sleep(0.5)
    watch.close()
    for member in watch.ranks:
        assert member.wait(20) != 0
    assert {processes.state(pid) for pid in ranks} <= {"", "Z"}
    assert not watch.folder.exists()


def test_a_rank_does_not_outlive_its_parent(watched: Callable[[], Watched]) -> None:
    watch = watched()
    member = watch.start(0, "sleep", "60")
    rank = watch.pid_of(0)
    member.kill()
    member.wait(20)
    deadline = time.monotonic() + 10
    while processes.state(rank) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_variable_that_no_rank_can_use_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(contract.WATCH, str(tmp_path))
    monkeypatch.setenv("MASTER_PORT", "tcp://10.0.0.1:29500")  # as in Kubernetes, of a Service "master"
    monkeypatch.setattr(account, "complete", lambda: None)
    assert rank_parent.main(["true"]) == contract.USAGE_EXIT_CODE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: MASTER_PORT is 'tcp://10.0.0.1:29500', expected an integer")


def test_an_existing_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        node_watch.main([str(tmp_path)])
