"""Commands of the docker client that several rooms use: for one container and for one image."""

import json
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from tooling.basis import identity
from tooling.basis.errors import UsageError

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
    """Run a command in a new container with a /dev/shm of 1 GB, and remove the container.

    Raises subprocess.TimeoutExpired after `limit_seconds`.
    """
    name = f"{PREFIX}{uuid.uuid4().hex}"
    argv = ["docker", "run", "--rm", "--name", name, _LABEL, "--shm-size=1g", *docker_arguments, image, *command]
    try:
        return subprocess.run(argv, stdin=stdin, stdout=stdout, stderr=stderr, check=False, timeout=limit_seconds)
    finally:  # returns at once if --rm has removed the container
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


@dataclass(frozen=True)
class LocalImage:
    """An image in the engine. `layers`: the digests of the uncompressed layers, the base's first.

    `configuration`: the part of the image that `docker run` uses, with the keys of `docker image inspect`.
    """

    id: str
    size_bytes: int
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    configuration: Mapping[str, Any]


def find_image(reference: str) -> LocalImage | None:
    """The image in the engine, or None."""
    argv = ["docker", "image", "inspect", "--format", "{{json .}}", reference]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None
    document = json.loads(result.stdout)
    configuration = document["Config"]
    return LocalImage(
        id=document["Id"],
        size_bytes=document["Size"],
        labels=configuration.get("Labels") or {},
        layers=tuple(document["RootFS"]["Layers"]),
        configuration=configuration,
    )


def read_image(reference: str) -> LocalImage:
    """The image in the engine. Raises UsageError if it is missing."""
    image = find_image(reference)
    if image is None:
        raise UsageError(f"image {reference} is not in the engine: build it with ./inv build")
    return image


def remove_image(reference: str) -> None:
    """Remove a tag. Remove the image too, unless it has another tag or a container uses it."""
    subprocess.run(["docker", "image", "rm", reference], capture_output=True, check=False)
