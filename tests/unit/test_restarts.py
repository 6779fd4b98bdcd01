"""What `launch --max-restarts` says of restarts, from what torchrun's agent logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from entrypoints.memory_events import Kills
from entrypoints.restarts import Restarts

FAILED = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"


def test_each_failure_before_the_last_is_told_with_its_rank_and_cause(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("agent")
    logger.addHandler(Restarts("node-3", 2, Kills()))
    logger.error("something else: %s", 1)
    for exit_code, local_rank in ((-9, 1), (7, 0), (-9, 0)):
        logger.error(FAILED, exit_code, local_rank, 1234, "python")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("a rank (local 1, node node-3) was killed by SIGKILL")
    assert lines[0].endswith(": restart 1 of 2")
    assert lines[1:] == ["a rank (local 0, node node-3) exited with code 7: restart 2 of 2"]


def test_a_kill_for_memory_is_told_of_the_attempt_that_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "sys/fs/cgroup/memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("oom_kill 1\n")
    logger = logging.Logger("agent")
    kills = Kills(tmp_path)
    logger.addHandler(Restarts(0, 3, kills))
    logger.error(FAILED, -9, 0, 1, "python")
    events.write_text("oom_kill 2\n")
    logger.error(FAILED, -9, 0, 2, "python")
    logger.error(FAILED, -9, 0, 3, "python")
    assert ["out of memory" in line for line in capsys.readouterr().err.splitlines()] == [False, True, False]
    assert not kills.any_new()
