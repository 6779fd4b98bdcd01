"""A Docker engine for one test, which may stop, kill and restart it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Python that turns on loopback (SIOCSIFFLAGS, IFF_UP), without the program ip, which a bare Debian lacks.
LOOPBACK = """import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh22x", b"lo", 1))
"""
_WITH_LOOPBACK = f"""{LOOPBACK}
import os, sys
os.execvp(sys.argv[1], sys.argv[1:])
"""


class SecondEngine:
    """An engine with its data and its log in `folder`, without images, and with no network except loopback.

    The engine has a separate network namespace, because an engine with --bridge=none deletes any existing docker0.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # For its sockets, whose paths must be shorter than those of the tests' folders.
        self.run = Path(tempfile.mkdtemp(prefix="cts-engine-"))
        self.run.chmod(0o755)  # for users with access through the socket's group
        self.socket = str(self.run / "docker.sock")
        self.process: subprocess.Popen[bytes] | None = None
        argv = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(self.run / "exec")]
        argv += ["--pidfile", str(folder / "pid"), "--bridge=none", "--iptables=false", "--ip6tables=false"]
        argv += ["--ip-forward=false", "--group", str(os.getgid()), "--host", f"unix://{self.socket}"]
        self._argv = ["unshare", "--net", sys.executable, "-c", _WITH_LOOPBACK, *argv]

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """The output of a docker command on this engine."""
        argv = ["docker", "--host", f"unix://{self.socket}", *arguments]
        return subprocess.run(argv, input=stdin, capture_output=True, check=True, timeout=120).stdout.decode()

    def limit(self, megabytes: int) -> None:
        """Puts the engine's data on a file system of so many megabytes. Call this before `start`."""
        data = self.folder / "data"
        data.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(data)]
        subprocess.run(mount, check=True, timeout=60)

    def start(self, *options: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*self._argv, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.docker("version")
            except subprocess.CalledProcessError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.2)
            else:
                return

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """SIGTERM: like `systemctl stop docker`. SIGKILL: like a crash; containers run until the next start."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)

    def clean(self) -> None:
        """Unmounts what the engine left mounted, so that the folder can be deleted."""
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        own = (f"{self.folder}/", f"{self.run}/")
        for mount in sorted((one for one in mounts if one.startswith(own)), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=True, timeout=60)
        shutil.rmtree(self.run)


@contextmanager
def running(folder: Path, *options: str, data_megabytes: int | None = None) -> Iterator[SecondEngine]:
    """A running engine. Afterwards, the engine and its containers are removed."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a second engine needs root and dockerd")
    engine = SecondEngine(folder)
    try:
        if data_megabytes is not None:
            engine.limit(data_megabytes)
        engine.start(*options)
        try:
            yield engine
        finally:
            if engine.process is None or engine.process.poll() is not None:
                engine.start()  # to remove containers that still run
            for container in engine.docker("ps", "--all", "--quiet").split():
                engine.docker("rm", "--force", "--volumes", container)
    finally:
        engine.end()
        engine.clean()
