"""A second machine as far as Docker is concerned: its engine uses the default paths, but is separate.

The machine is a process with separate PID, mount and network namespaces, in which /run and /var/lib/docker are
empty. A test can let the tool start an engine there, and kill it, while this machine's engine keeps running.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT
from tooling.engine.decide import may_act
from tooling.engine.find import read_host

NAMESPACES = ("--mount", "--net", "--pid")
PREPARE = """
mount -t tmpfs tmpfs /run && mount --bind "$0" /var/lib/docker && ip link set lo up && echo ready &&
exec sleep 3600
"""


class SecondMachine:
    """Needs root, and a system on which the tool starts engines."""

    def __init__(self, folder: Path) -> None:
        needed = ("dockerd", "unshare", "nsenter", "ip")
        if missing := [name for name in needed if shutil.which(name) is None]:
            pytest.skip(f"a second machine needs {', '.join(missing)}")
        if not may_act(read_host()):
            pytest.skip("the tool starts an engine on Debian, as root")
        data = folder / "var-lib-docker"
        data.mkdir()
        argv = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "--kill-child", "sh", "-c", PREPARE, str(data)]
        self._holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        holder = self._holder.pid
        self._first = Path(f"/proc/{holder}/task/{holder}/children").read_text().strip()

    def command(self, *argv: str) -> list[str]:
        """The argument list that runs a command in the machine."""
        return ["nsenter", *NAMESPACES, f"--target={self._first}", f"--wd={ROOT}", *argv]

    def run(self, *argv: str, stdin: bytes = b"") -> str:
        """The output of a command in the machine that must succeed."""
        done = subprocess.run(self.command(*argv), input=stdin, capture_output=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def python(
        self, log: Path, script: str, *arguments: str, environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Starts a script of this checkout in the machine, in the background, with its output in `log`."""
        with log.open("wb") as stream:
            return subprocess.Popen(
                self.command(sys.executable, "-c", script, *arguments),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )

    @property
    def engine(self) -> str:
        """The PID of dockerd, from its pid file."""
        return self.run("cat", "/run/docker.pid").strip()

    def kill_engine(self) -> None:
        self.run("kill", "-KILL", self.engine)

    def close(self) -> None:
        """Ends every process in the machine."""
        self._holder.kill()
        self._holder.wait()
