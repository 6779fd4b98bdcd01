"""A finished rank exits, even if its libraries have left threads."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.entrypoints import ROOT

POOL = """
import sys
from concurrent.futures import ThreadPoolExecutor

from entrypoints.rank.exit import exit_finished

sys.pool = ThreadPoolExecutor(1)  # kept by a module, as torch.compile's is
print(sys.pool.submit(int, "3").result())
exit_finished()
"""


def test_a_thread_pool_that_is_not_shut_down_does_not_keep_a_rank_from_exiting() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POOL], capture_output=True, text=True, check=False, timeout=20, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
