"""After kill -9 of ./inv, no program that it started goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT

_CALLS = {
    "buildx": "from tooling.image import build; build.buildx(['docker'], 'x', 'x')",
    "pull": "from tooling.image import base; base.pull('x', 60)",
    "mmdebstrap": "from tooling.image import base; base.bootstrap(next(iter(parse.load().pins.values())), 'x')",
    "run": "from tooling.engine import docker; docker._ONCE = paths.CACHE / 'once'; docker.run('x', [])",
    "save": "from tooling.hpc import export; export._piped(['docker'])",
    "export": "from tooling.hpc import export; export._unpack(['docker'], paths.CACHE / 'new')",
    "unpack": "from tooling.hpc import export; export._unpack(['sleep', '60'], paths.CACHE / 'new')",
    "compose": "from tooling.cluster import containers; containers._compose_up('x', pathlib.Path('x'))",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", _CALLS)
def test_a_killed_command_leaves_no_program_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("#!/bin/sh", f"cd {tmp_path}", "echo $$ >draft", "ln draft pid", "exec sleep 60")
    for program in ("docker", "mmdebstrap", *(["tar"] if name == "unpack" else [])):
        (tmp_path / program).write_text("\n".join(lines))
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    begin = "import pathlib; from tooling.basis import paths; from tooling.pins import parse"
    code = f"{begin}; paths.CACHE = pathlib.Path({str(tmp_path)!r}); {_CALLS[name]}"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.05)
