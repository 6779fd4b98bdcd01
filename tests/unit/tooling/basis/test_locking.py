"""One command at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tooling.basis.locking import TakenError, alone
from tooling.basis.paths import ROOT

HOLD = """
import sys, time
from pathlib import Path
from tooling.basis.locking import alone
with alone(Path(sys.argv[1]), waiting=None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_that_another_process_holds_is_taken_until_that_process_ends(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TakenError), alone(lock, waiting=None):
            pass
        waited: list[bool] = []

        def waiting() -> None:
            waited.append(True)
            holder.kill()

        with alone(lock, waiting):
            assert waited == [True]
    finally:
        holder.kill()
        holder.wait()
