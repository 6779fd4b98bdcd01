"""images/entrypoint, with the Python and the entrypoints/ of this checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT


@pytest.mark.parametrize("command", ["--help", "echo", "no-such-command"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_an_empty_one(command: str, closed: str, tmp_path: Path) -> None:
    script = (ROOT / "images" / "entrypoint").read_text().replace("/opt/venv/bin/python", sys.executable)
    (tmp_path / "entrypoint").write_text(script)
    argv = ["sh", "-c", f"sh {tmp_path}/entrypoint {command} {closed}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    works, closes_stdout, closes_stderr = command != "no-such-command", " >" in f" {closed}", "2>" in closed
    assert done.returncode == (0 if works else 127)
    assert bool(done.stdout) is (works and not closes_stdout)
    assert done.stderr.count("\n") == (0 if works or closes_stderr else 1)
