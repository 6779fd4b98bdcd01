"""A machine without Docker, whose user has rootless podman and this checkout's image as a file.

The machine is a process with separate PID, mount and network namespaces. In it, Docker's programs and its socket
are hidden, one more user exists, and slirp4netns' device has the mode that udev gives it. When the machine is
closed, podman's processes and containers end with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT
from tooling.basis.say import last_line
from tooling.engine.decide import may_act
from tooling.engine.find import read_host
from tooling.engine.install import install

PACKAGES = ("podman", "uidmap", "slirp4netns", "netavark", "aardvark-dns")
USER, UID = "cts-user", 4321
# $1: a folder of this machine, with home/ and etc/. $2, $3: Python's prefix, and the folder of its packages.
PREPARE = f"""
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=0755 tmpfs /mnt
mkdir /mnt/home /mnt/python /mnt/packages
mount --bind "$1/home" /mnt/home
mount --bind "$2" /mnt/python
mount --bind "$3" /mnt/packages
for file in passwd group subuid subgid; do
    mount --bind "$1/etc/$file" "/etc/$file"
done
for program in docker dockerd; do
    for path in $(which -a "$program"); do mount --bind /dev/null "$path"; done
done
mknod -m 0666 /mnt/tun c 10 200
mount --bind /mnt/tun /dev/net/tun
install -d -o {UID} -g {UID} -m 0700 /run/user/{UID}
ip link set lo up
echo ready
exec sleep 3600
"""
INV = """\
#!/bin/sh
export INV_CWD=$PWD PYTHONPATH=/mnt/packages
cd /mnt/home/checkout && exec /mnt/python/bin/python{version} -m tooling "$@"
"""
# Debian 12's podman uses vfs without the first file: it copies the image for each container. Its crun refuses a
# hybrid of cgroup v1 and v2; runc is installed with Docker.
CONFIGURATION = {
    "storage.conf": '[storage]\ndriver = "overlay"\n',
    "containers.conf": '[engine]\nruntime = "runc"\n',
}


class PodmanMachine:
    """`home`: the user's home folder, with a copy of this checkout. It is /mnt/home in the machine."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        _fill(folder)
        prefix, packages = sys.base_prefix, str(Path(pytest.__file__).parents[1])
        argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        argv += ["sh", "-c", PREPARE, "sh", str(folder), prefix, packages]
        self._holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        holder = self._holder.pid
        self._first = Path(f"/proc/{holder}/task/{holder}/children").read_text().strip()

    def run(self, *command: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """Runs a command as the user, in the home folder."""
        argv = ["nsenter", "--mount", "--net", "--pid", f"--target={self._first}"]
        argv += [
            "setpriv",
            f"--reuid={UID}",
            f"--regid={UID}",
            "--clear-groups",
            "env",
            "--chdir=/mnt/home",
            *command,
        ]
        environ = {"HOME": "/mnt/home", "USER": USER, "XDG_RUNTIME_DIR": f"/run/user/{UID}", "LANG": "C.UTF-8"}
        environ["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=timeout)

    def inv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("/mnt/home/checkout/inv", *arguments)

    def close(self) -> None:
        """Ends every process in the machine."""
        self._holder.kill()
        self._holder.wait()


def _fill(folder: Path) -> None:
    """The user's home folder and entries in the lists of users."""
    checkout = folder / "home" / "checkout"
    skipped = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, checkout, ignore=skipped)
    (checkout / "inv").write_text(INV.format(version=f"{sys.version_info.major}.{sys.version_info.minor}"))
    configuration = folder / "home" / ".config" / "containers"
    configuration.mkdir(parents=True)
    for name, text in CONFIGURATION.items():
        (configuration / name).write_text(text)
    etc = folder / "etc"
    etc.mkdir()
    entries = {
        "passwd": f"{USER}:x:{UID}:{UID}::/mnt/home:/bin/sh",
        "group": f"{USER}:x:{UID}:",
        "subuid": f"{USER}:1000000:65536",
        "subgid": f"{USER}:1000000:65536",
    }
    for name, entry in entries.items():
        (etc / name).write_text(f"{Path('/etc', name).read_text()}{entry}\n")
    for path in (folder / "home", *(folder / "home").rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)


@contextmanager
def podman_machine(folder: Path) -> Iterator[PodmanMachine]:
    """A machine in `folder`, on a file system that overlay can use. Needs root, and podman or Debian's apt."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to have a user and a mount namespace of its own")
    if shutil.which("podman") is None:
        if not may_act(read_host()):
            pytest.skip("podman is not installed, and the tool installs packages on Debian only")
        install(PACKAGES, read_host())
    if missing := [name for name in ("newuidmap", "slirp4netns", "runc", "setpriv") if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    if not Path("/dev/net/tun").exists():
        pytest.skip("slirp4netns needs /dev/net/tun")
    machine = PodmanMachine(folder)
    try:
        if (probe := machine.run("podman", "unshare", "true")).returncode != 0:
            pytest.skip(f"podman cannot make user namespaces here: {last_line(probe.stderr)}")
        yield machine
    finally:
        machine.close()
