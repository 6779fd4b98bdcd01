"""A finished rank exits, even if its libraries have left threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.entrypoints import ROOT

POOL = """
import sys
from concurrent.futures import ThreadPoolExecutor

from cpu_train_stack.rank.exit import exit_finished

sys.pool = ThreadPoolExecutor(1)  # kept by a module, as torch.compile's is
print(sys.pool.submit(int, "3").result())
exit_finished()
"""

HANDLER = """
import atexit

from cpu_train_stack.rank.exit import exit_failed, exit_finished

run_handlers = atexit._run_exitfuncs

def run_handlers_as_python_3_9():
    run_handlers()
    raise SystemExit("from a handler")

atexit._run_exitfuncs = run_handlers_as_python_3_9
atexit.register(print, "handled", flush=True)
"""


FULL_DISK = """
import resource
import signal
import sys

from cpu_train_stack.rank.exit import record

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
record(RuntimeError("an error"))
"""


def test_a_full_disk_leaves_no_incomplete_error_file(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        cwd=ROOT,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("warning: the launcher cannot report this rank's error: ")
    assert [*tmp_path.iterdir()] == []


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
