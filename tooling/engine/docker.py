"""One command in one container of an image, and nothing left behind whatever happens."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import IO

from tooling.basis import identity

PREFIX = f"cts-once-{identity.IDENTITY}-"
_LABEL = f"--label={identity.LABEL}={identity.IDENTITY}"


def run(
    image: str,
    command: Sequence[str],
    docker_arguments: Sequence[str] = (),
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    limit_seconds: float | None = None,
    stdin: IO[bytes] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """`docker run`, with /dev/shm of 1 GB. Raises subprocess.TimeoutExpired after the clean-up."""
    name = f"{PREFIX}{os.getpid()}"
    argv = ["docker", "run", "--rm", "--name", name, _LABEL, "--shm-size=1g", *docker_arguments, image, *command]
    try:
        return subprocess.run(argv, stdin=stdin, stdout=stdout, stderr=stderr, check=False, timeout=limit_seconds)
    finally:  # ends at once where --rm has done it
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
