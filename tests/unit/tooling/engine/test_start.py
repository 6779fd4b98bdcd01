"""dockerd without an init system: its log, its pid file, and whether it was killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tooling.engine import start
from tooling.engine.start import is_stale, last_cause


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            'time="t" level=info msg="Starting up"\nfailed to start daemon: no space\n\n',
            "failed to start daemon: no space",
        ),
        ('time="t" level=fatal msg="cannot use \\"x\\" here" spam=1\n', 'cannot use "x" here'),
        ("\n", "no log was written"),
    ],
)
def test_dockerds_cause_is_its_last_line_without_decoration(log: str, cause: str) -> None:
    assert last_cause(log) == cause


@pytest.mark.parametrize(
    ("pid", "status", "stale"),
    [
        ("7", "Name:\tdockerd\nState:\tS (sleeping)\n", False),
        ("7", "Name:\tdockerd\nState:\tZ (zombie)\n", True),
        ("7", "Name:\tbash\nState:\tS (sleeping)\n", True),
        ("7", None, True),
        ("", None, True),
        (None, None, False),
    ],
    ids=["running", "zombie", "another program", "gone", "empty file", "no file"],
)
def test_a_pid_file_is_stale_unless_its_own_program_runs(
    tmp_path: Path, pid: str | None, status: str | None, stale: bool
) -> None:
    pid_file = tmp_path / "docker.pid"
    if pid is not None:
        pid_file.write_text(pid)
    if status is not None:
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "status").write_text(status)
    assert is_stale(pid_file, "dockerd", proc=tmp_path) is stale


def test_a_pid_file_of_a_process_that_runs_now_is_read_from_the_kernel(tmp_path: Path) -> None:
    pid_file = tmp_path / "own.pid"
    pid_file.write_text(str(os.getpid()))
    name = Path("/proc/self/comm").read_text().strip()
    assert not is_stale(pid_file, name)
    assert is_stale(pid_file, "dockerd")


@pytest.mark.parametrize(
    ("started", "pid_file", "killed"),
    [
        ("7", "7\n", True),
        (None, "7\n", False),
        ("6", "7\n", False),
        ("7", None, False),
        ("7", "8\n", False),
    ],
    ids=["killed", "never started one", "another checkout's", "stopped in good order", "a new one"],
)
def test_only_an_engine_of_this_checkout_that_did_not_end_in_good_order_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str | None, pid_file: str | None, killed: bool
) -> None:
    found = {"own": started, "docker.pid": pid_file}
    for name, text in found.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(start, "STARTED", tmp_path / "own")
    monkeypatch.setattr(start, "PID_FILES", {tmp_path / "docker.pid": "dockerd"})
    assert start.was_killed() is killed
