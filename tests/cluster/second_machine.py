"""A second machine as far as Docker goes: an engine in it is found where engines are, and nowhere else.

It is a process with mount and network namespaces of its own, in which /run and /var/lib/docker are empty. So a
test can let the tool start an engine there, and kill it, beside the engine of this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tooling.engine_plan import may_act
from tooling.host import read_host
from tooling.paths import ROOT

PREPARE = """
mount -t tmpfs tmpfs /run && mount --bind "$0" /var/lib/docker && ip link set lo up && echo ready &&
exec sleep 3600
"""


class SecondMachine:
    """Needs root, as engines do, and a system on which the tool starts engines."""

    def __init__(self, folder: Path) -> None:
        needed = ("dockerd", "unshare", "nsenter", "ip")
        if missing := [name for name in needed if shutil.which(name) is None]:
            pytest.skip(f"a second machine needs {', '.join(missing)}")
        if not may_act(read_host()):
            pytest.skip("the tool starts an engine on Debian, as root")
        data = folder / "var-lib-docker"
        data.mkdir()
        argv = ["unshare", "--mount", "--net", "sh", "-c", PREPARE, str(data)]
        self._holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        self._pid_file = Path(f"/proc/{self._holder.pid}/root/run/docker.pid")

    def command(self, *argv: str) -> list[str]:
        """The words that run a command in it."""
        return ["nsenter", "--mount", "--net", f"--target={self._holder.pid}", f"--wd={ROOT}", *argv]

    def run(self, *argv: str, stdin: bytes = b"") -> str:
        """The output of a command in it that must succeed."""
        done = subprocess.run(self.command(*argv), input=stdin, capture_output=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def python(
        self, log: Path, script: str, *arguments: str, environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """A script of this checkout in it, in the background, its output in `log`."""
        with log.open("wb") as stream:
            return subprocess.Popen(
                self.command(sys.executable, "-c", script, *arguments),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )

    @property
    def engine(self) -> int:
        """The process number of its dockerd, 0 where there is none."""
        return int(self._pid_file.read_text()) if self._pid_file.is_file() else 0

    def kill_engine(self) -> None:
        os.kill(self.engine, signal.SIGKILL)

    def close(self) -> None:
        """Stops its engine in good order, which ends the containers, then the machine."""
        try:
            process = self.engine
            os.kill(process, signal.SIGTERM)
            deadline = time.monotonic() + 30
            while self.engine == process and time.monotonic() < deadline:
                time.sleep(0.1)
        except (ProcessLookupError, ValueError):
            pass
        finally:
            self._holder.kill()
            self._holder.wait()
