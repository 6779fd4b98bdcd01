"""What `launch --max-restarts` says of restarts, from what torchrun's agent logs."""

from __future__ import annotations

import logging

import pytest

from entrypoints.restarts import Restarts

FAILED = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"


def test_each_failure_before_the_last_is_told_with_its_rank_and_cause(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("agent")
    logger.addHandler(Restarts("node-3", max_restarts=2))
    logger.error("something else: %s", 1)
    for exit_code, local_rank in ((-9, 1), (7, 0), (-9, 0)):
        logger.error(FAILED, exit_code, local_rank, 1234, "python")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("a rank (local 1, node node-3) was killed by SIGKILL")
    assert lines[0].endswith(": restart 1 of 2")
    assert lines[1:] == ["a rank (local 0, node node-3) exited with code 7: restart 2 of 2"]
