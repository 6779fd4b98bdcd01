"""A rank that is done ends, whatever threads its libraries have left."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.entrypoints import ROOT

POOL = """
import sys
from concurrent.futures import ThreadPoolExecutor

from entrypoints.rank import exit as failure

sys.pool = ThreadPoolExecutor(1)  # kept by a module, as torch.compile's is
print(sys.pool.submit(int, "3").result())
failure.finish()
"""


def test_a_pool_of_threads_that_nobody_shuts_down_does_not_keep_a_rank_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", POOL], capture_output=True, text=True, check=False, timeout=20, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
