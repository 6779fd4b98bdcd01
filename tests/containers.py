"""Runs one command in one container, and leaves nothing behind whatever happens."""

import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from tooling.basis.identity import IDENTITY
from tooling.image import base
from tooling.pins import parse

# Prefix of this test session's containers, networks and tags, unique to the checkout and the process.
PREFIX = f"cpu-train-stack-test-{IDENTITY}-{os.getpid()}-"

# Of a command. Far more than a command needs: tests in other processes use the same cores.
TIMEOUT_SECONDS = 400.0

# Of a build of the row's image. It took 12 minutes where the engine had dropped its cache and other tests used
# the cores.
BUILD_SECONDS = 1400.0
# Of a test with such a build.
BUILD_TEST_SECONDS = BUILD_SECONDS + 300

_numbers = itertools.count()


class RunInImage(Protocol):
    """The type of the fixture `run_in_image`."""

    def __call__(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        docker_args: Sequence[str] = (),
        timeout: float = TIMEOUT_SECONDS,
    ) -> subprocess.CompletedProcess[str]: ...


def unique_name() -> str:
    """A name that no other container, network or tag has."""
    return f"{PREFIX}{next(_numbers)}"


def run(
    image: str,
    *argv: str,
    env: Mapping[str, str] | None = None,
    docker_args: Sequence[str] = (),
    timeout: float = TIMEOUT_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """`docker run image argv...` with text output. Raises subprocess.TimeoutExpired after the clean-up."""
    name = unique_name()
    variables = [word for key, value in (env or {}).items() for word in ("--env", f"{key}={value}")]
    command = ["docker", "run", "--rm", "--name", name, *variables, *docker_args, image, *argv]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except BaseException:  # the client was killed, the container still runs
        subprocess.run(
            ["docker", "rm", "--force", "--volumes", name], capture_output=True, check=False, timeout=60
        )
        raise


def left_behind() -> list[str]:
    """The containers and networks of this session that still exist."""
    found = []
    for argv in (
        ["docker", "ps", "--all", "--format", "{{.Names}}"],
        ["docker", "network", "ls", "--format", "{{.Name}}"],
    ):
        listed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
        found += [name for name in listed.splitlines() if name.startswith(PREFIX)]
    return found


def build(tag: str, dockerfile: str, pin: str | None = None, **values: str) -> None:
    """Build an image on the base image of a pin, or of the default pin. `dockerfile` names {base} and `values`."""
    argv = ["docker", "buildx", "build", "--builder", "default", "--quiet", "--tag", tag, "-"]
    text = dockerfile.format(base=base.ensure(parse.load().pin(pin)).reference, **values)
    subprocess.run(argv, input=text, text=True, capture_output=True, check=True, timeout=600)


def works(result: subprocess.CompletedProcess[str]) -> str:
    """The standard output of a command that must have succeeded."""
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout
