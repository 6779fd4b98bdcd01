"""Which error a rank reports, with a fake of the process group."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.entrypoints import ROOT

WORK = """
import sys
import types
from contextlib import contextmanager

from cpu_train_stack.cli.errors import MeetingError, UsageError
from cpu_train_stack.placement.detect import DistributedEnvironment

@contextmanager
def initialize(*_):
    raise MeetingError("only 1 of 2 ranks met")
    yield

create = sys.modules["cpu_train_stack.group.create"] = types.ModuleType("create")  # the real one imports torch
create.initialize, create.agree = lambda *args, when_needed: initialize(*args), None
from cpu_train_stack.rank.work import work

try:
    work("run", sys.argv[1:], DistributedEnvironment(1, 2, 1, 2), [])
except UsageError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["no-such-script.py"], "UsageError run: 'no-such-script.py' is not a file"),
        (["-m", "tests"], "MeetingError only 1 of 2 ranks met"),
    ],
    ids=["own error", "no own error"],
)
def test_a_rank_that_meets_no_other_rank_reports_its_own_error(argv: list[str], expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK, "--backend", "gloo", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
    )
    assert done.stdout.startswith(expected), done.stderr
