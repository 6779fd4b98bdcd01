"""Atomic writes, and locks between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tooling.basis.files import LockedError, locked
from tooling.basis.paths import ROOT

WRITE = """
import sys
from pathlib import Path
from tooling.basis.files import write_atomic
for _ in range(500):
    write_atomic(Path(sys.argv[1]), sys.argv[2] * 10_000)
"""


def test_two_processes_can_write_the_same_file_at_the_same_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    argv = [sys.executable, "-c", WRITE, str(file)]
    writers = [subprocess.Popen([*argv, letter], stderr=subprocess.PIPE, cwd=ROOT) for letter in "ab"]
    ended = [writer.communicate(timeout=60)[1] for writer in writers]
    assert ended == [b"", b""]
    assert file.read_text() in ("a" * 10_000, "b" * 10_000)
    assert list(tmp_path.iterdir()) == [file]


HOLD = """
import sys, time
from pathlib import Path
from tooling.basis.files import locked
with locked(Path(sys.argv[1]), waiting=None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_held_until_its_process_ends(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError), locked(lock, waiting=None):
            pass
        waited: list[bool] = []

        def waiting() -> None:
            waited.append(True)
            holder.kill()

        with locked(lock, waiting):
            assert waited == [True]
    finally:
        holder.kill()
        holder.wait()
