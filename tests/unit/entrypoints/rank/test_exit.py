"""A finished rank exits, even if its libraries have left threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.entrypoints import ROOT

POOL = """
import sys
from concurrent.futures import ThreadPoolExecutor

from entrypoints.rank.exit import exit_finished

sys.pool = ThreadPoolExecutor(1)  # kept by a module, as torch.compile's is
print(sys.pool.submit(int, "3").result())
exit_finished()
"""

HANDLER = """
import atexit

from entrypoints.rank.exit import exit_failed, exit_finished

run_handlers = atexit._run_exitfuncs

def run_handlers_as_python_3_9():
    run_handlers()
    raise SystemExit("from a handler")

atexit._run_exitfuncs = run_handlers_as_python_3_9
atexit.register(print, "handled", flush=True)
"""


def test_a_thread_pool_that_is_not_shut_down_does_not_keep_a_rank_from_exiting() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POOL], capture_output=True, text=True, check=False, timeout=20, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


@pytest.mark.parametrize(("end", "code"), [("exit_finished()", 0), ("exit_failed(3)", 3)], ids=["0", "3"])
def test_a_failing_exit_handler_does_not_change_the_exit_code(end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANDLER + end], capture_output=True, text=True, check=False, timeout=20, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (code, "handled\n"), done.stderr
