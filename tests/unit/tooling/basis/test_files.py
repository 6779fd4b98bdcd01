"""Files that are whole or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tooling.basis.paths import ROOT

WRITE = """
import sys
from pathlib import Path
from tooling.basis.files import write_whole
for _ in range(500):
    write_whole(Path(sys.argv[1]), sys.argv[2] * 10_000)
"""


def test_two_processes_can_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    argv = [sys.executable, "-c", WRITE, str(file)]
    writers = [subprocess.Popen([*argv, letter], stderr=subprocess.PIPE, cwd=ROOT) for letter in "ab"]
    ended = [writer.communicate(timeout=60)[1] for writer in writers]
    assert ended == [b"", b""]
    assert file.read_text() in ("a" * 10_000, "b" * 10_000)
    assert list(tmp_path.iterdir()) == [file]
