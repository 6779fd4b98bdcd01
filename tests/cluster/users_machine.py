"""A machine of a user who is not root, with one of ENGINES, and with this checkout in the user's home folder.

The machine is a process with separate PID, mount and network namespaces, or a privileged container of Debian 13.
In it, one more user exists, and slirp4netns' device has the mode that udev gives it. Where the engine is podman,
Docker's programs and its socket are hidden. When the machine is closed, its engine and its containers end with it.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cpu_train_stack.cli.printable import last_line
from tests import containers
from tests.cluster.slurm_cluster import docker
from tests.second_engine import LOOPBACK
from tooling.basis.paths import ROOT
from tooling.engine.decide import may_act
from tooling.engine.find import read_host
from tooling.engine.install import install
from tooling.image import base
from tooling.pins import parse

USER, UID = "cts-user", 4321
RUNTIME = f"/run/user/{UID}"
PODMAN, DEBIAN_13 = "podman", "podman-on-debian-13"
ROOTLESS, REMAPPED = "rootless-docker", "docker-userns-remap"
ENGINES = (PODMAN, DEBIAN_13, ROOTLESS, REMAPPED)
PACKAGES = {
    PODMAN: ("podman", "uidmap", "slirp4netns", "netavark", "aardvark-dns"),
    ROOTLESS: ("rootlesskit", "uidmap", "slirp4netns"),
}
NEEDED = {
    PODMAN: ("podman", "newuidmap", "slirp4netns", "runc", "setpriv"),
    DEBIAN_13: (),
    ROOTLESS: ("dockerd", "rootlesskit", "newuidmap", "slirp4netns", "setpriv"),
    REMAPPED: ("dockerd", "setpriv"),
}
DOCKERFILE = """
FROM {base}
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update -q && apt-get install -q -y --no-install-recommends \\
    podman uidmap passt netavark aardvark-dns nftables runc iproute2 \\
    libssl3t64 libffi8 libsqlite3-0 zlib1g libbz2-1.0 liblzma5
"""
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
    touch "/etc/$file"
    mount --bind "$1/etc/$file" "/etc/$file"
done
mknod -m 0666 /mnt/tun c 10 200
mount --bind /mnt/tun /dev/net/tun
install -d -o {UID} -g {UID} -m 0700 {RUNTIME}
python3 -c '{LOOPBACK}'
"""
HIDE_DOCKER = """
for program in docker dockerd; do
    for path in $(which -a "$program"); do mount --bind /dev/null "$path"; done
done
"""
# The daemon's user must be able to pass through all folders of its data.
DOCKERS_DATA = """
mkdir "$1/docker"
mount --bind "$1/docker" /var/lib/docker
"""
READY = """
echo ready
exec sleep 3600
"""
INV = """\
#!/bin/sh
export INV_CWD=$PWD PYTHONPATH=/mnt/packages:/mnt/home/checkout/entrypoints LD_LIBRARY_PATH=/mnt/python/lib
cd /mnt/home/checkout && exec /mnt/python/bin/python{version} -m tooling "$@"
"""
# Debian 12's podman uses vfs without the first file: it copies the image for each container. Its crun refuses a
# hybrid of cgroup v1 and v2; runc is installed with Docker.
CONFIGURATION = {
    "storage.conf": '[storage]\ndriver = "overlay"\n',
    "containers.conf": '[engine]\nruntime = "runc"\n',
}


class UsersMachine:
    """`home`: the user's home folder, /mnt/home in the machine. `enter`: what runs a command as root in it."""

    def __init__(self, folder: Path, engine: str, enter: Sequence[str]) -> None:
        self.home = folder / "home"
        self.client = "podman" if engine in (PODMAN, DEBIAN_13) else "docker"
        self._enter = enter
        self._environ = {
            "HOME": "/mnt/home",
            "USER": USER,
            "XDG_RUNTIME_DIR": RUNTIME,
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            **({"DOCKER_HOST": f"unix://{RUNTIME}/docker.sock"} if engine == ROOTLESS else {}),
        }

    def command(self, *command: str) -> list[str]:
        """The argument list that runs a command as the user, in the home folder."""
        user = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
        variables = [f"{name}={value}" for name, value in self._environ.items()]
        return [*self._enter, *user, "env", "--ignore-environment", "--chdir=/mnt/home", *variables, *command]

    def run(self, *command: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """Runs a command as the user, in the home folder."""
        argv = self.command(*command)
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout)

    def inv(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("/mnt/home/checkout/inv", *arguments)

    def version(self) -> str:
        """What the engine's client prints about it."""
        return self.run(self.client, "version").stdout


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
def _namespaces(script: str, arguments: Sequence[str]) -> Iterator[list[str]]:
    argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen([*argv, "sh", "-c", script, "sh", *arguments], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            first = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().strip()
            yield ["nsenter", "--mount", "--net", "--pid", f"--target={first}"]
        finally:
            holder.kill()


@contextmanager
def _container(folder: Path, script: str, arguments: Sequence[str]) -> Iterator[list[str]]:
    row = next(pin for pin in parse.load().pins.values() if pin.debian.number == 13)
    name, tag = containers.unique_name(), f"{containers.unique_name()}:machine"
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE.format(base=base.ensure(row).reference))
    volumes = [f"--volume={path}:{path}" for path in (folder, *arguments[1:])]
    try:
        docker("build", "--quiet", "--tag", tag, str(context))
        docker(
            "run",
            "--detach",
            "--privileged",
            f"--name={name}",
            *volumes,
            tag,
            "sh",
            "-c",
            script,
            "sh",
            *arguments,
        )
        deadline = time.monotonic() + containers.TIMEOUT_SECONDS
        while "ready" not in docker("logs", name):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield ["docker", "exec", name]
    finally:
        for command in (("rm", "--force", "--volumes", name), ("rmi", tag)):
            subprocess.run(["docker", *command], capture_output=True, check=False, timeout=120)


@contextmanager
def _engine(machine: UsersMachine, folder: Path, engine: str, enter: Sequence[str]) -> Iterator[None]:
    """Docker's engine in the machine; podman needs none."""
    if engine in (PODMAN, DEBIAN_13):
        yield
        return
    if engine == ROOTLESS:
        argv = machine.command("/usr/share/docker.io/contrib/dockerd-rootless.sh")
    else:
        argv = [*enter, "dockerd", f"--userns-remap={USER}", f"--group={UID}"]
    with (folder / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + containers.TIMEOUT_SECONDS
            while machine.run("docker", "info").returncode != 0:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.5)
            yield
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def users_machine(folder: Path, engine: str) -> Iterator[UsersMachine]:
    """A machine in `folder`, on a file system that overlay can use. Needs root, and the engine or Debian's apt."""
    assert engine in ENGINES, f"CTS_ENGINE is {engine!r}, expected one of {', '.join(ENGINES)}"
    if os.geteuid() != 0:
        pytest.skip("needs root, to have a user and a mount namespace of its own")
    if any(shutil.which(name) is None for name in NEEDED[engine]) and may_act(read_host()):
        install(PACKAGES.get(engine, ()), read_host())
    if missing := [name for name in NEEDED[engine] if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    if not Path("/dev/net/tun").exists():
        pytest.skip("slirp4netns needs /dev/net/tun")
    _fill(folder)
    arguments = (str(folder), sys.base_prefix, str(Path(pytest.__file__).parents[1]))
    script = PREPARE + {PODMAN: HIDE_DOCKER, REMAPPED: DOCKERS_DATA}.get(engine, "") + READY
    made = _container(folder, script, arguments) if engine == DEBIAN_13 else _namespaces(script, arguments)
    with made as enter:
        machine = UsersMachine(folder, engine, enter)
        if machine.client == "podman" and (probe := machine.run("podman", "unshare", "true")).returncode != 0:
            pytest.skip(f"podman cannot make user namespaces here: {last_line(probe.stderr)}")
        with _engine(machine, folder, engine, enter):
            yield machine
