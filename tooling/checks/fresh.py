"""`./inv dev fresh`: the README's commands on a fresh Debian, without the programs of this machine.

The fresh machine is a privileged container of the base image with a clone of the last commit. It has no .venv and
no .cache, and none of Docker, podman, skopeo, cosign, apptainer, Slurm, ssh and a browser. `./inv` installs and
starts an engine inside it.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from invoke.exceptions import Exit

from cpu_train_stack.cli.say import say
from tooling.basis.paths import ROOT
from tooling.engine import api, docker
from tooling.image import base, proxies
from tooling.pins import parse

COMMANDS = ("./inv demo", "./inv test")
# Tests that need one of these install it, or skip and say why.
ABSENT = "docker podman skopeo cosign apptainer srun ssh chromium"
# What a user has who has cloned the repository.
_PREPARE = (
    "export DEBIAN_FRONTEND=noninteractive",
    "apt-get update -qq",
    "apt-get install -qq -y --no-install-recommends git ca-certificates python3 python3-venv >/dev/null",
    f"! command -v {ABSENT}",
    "git config --global --add safe.directory '*'",
    "git clone -q /checkout /fresh",
    "cd /fresh",
)
# Where pip looks for its configuration, besides the variables PIP_*.
_PIP_FILES = ("/etc/pip.conf", "/etc/xdg/pip", "~/.config/pip", "~/.pip")
# The mount point of files that these variables name.
_HOST = "/run/host"
LIMIT_SECONDS = 3 * 3600.0


def run(command: Sequence[str]) -> None:
    """Run the command, by default the README's two. Raises Exit with the exit code of the first that fails."""
    if subprocess.run(["git", "-C", str(ROOT), "diff", "--quiet", "HEAD"], check=False).returncode != 0:
        say("the checkout has changes that are not committed: they are not on the fresh machine")
    api.ensure()
    ground = base.ensure(parse.load().pin())
    done = docker.run(
        ground.reference,
        ["bash", "-c", " && ".join((*_PREPARE, *([shlex.join(command)] if command else COMMANDS)))],
        [
            "--privileged",  # for the engine inside
            "--network=host",
            "--volume=/var/lib/docker",
            # Tests limit its disk, and keep engines in it: neither works in a container's own file system.
            "--volume=/tmp",
            f"--volume={ROOT}:/checkout:ro",
            *_network(),
        ],
        limit_seconds=LIMIT_SECONDS,
    )
    if done.returncode != 0:
        raise Exit("a command failed on the fresh machine: see the output above", code=done.returncode)


def _network() -> Iterator[str]:
    """Docker's arguments for the proxies and the pip configuration of this machine."""
    for name, value in proxies.of(os.environ).items():
        yield f"--env={name}={value}"
    for path in (Path(name).expanduser() for name in _PIP_FILES):
        if path.exists():
            target = Path("/root") / path.relative_to(Path.home()) if path.is_relative_to(Path.home()) else path
            yield f"--volume={path}:{target}:ro"
    for name in sorted(name for name in os.environ if name.startswith("PIP_")):
        words = os.environ[name].split()
        for named in {word for word in words if word.startswith("/") and Path(word).exists()}:
            yield f"--volume={named}:{_HOST}{named}:ro"
        yield f"--env={name}=" + " ".join(f"{_HOST}{word}" if word.startswith("/") else word for word in words)
