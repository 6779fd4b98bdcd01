"""--image: an image that was built elsewhere. A file of ./inv export, or a name in the engine or in a registry."""

import json
import tarfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import requests
from docker import DockerClient
from docker.errors import DockerException

from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.engine import docker
from tooling.engine.api import Engine
from tooling.engine.client import connect
from tooling.engine.docker import LocalImage
from tooling.image.build import Image
from tooling.pins.pin import Pin

ImageOption = Annotated[
    str | None,
    "use this image instead of building one: a file of ./inv export --format docker, or a name in the engine "
    "or in a registry",
]
# Loading an image of gigabytes, and pulling one.
_SILENCE_SECONDS = 600


def name(image: str) -> str:
    """What the engine calls the image: the ID of the image in a file, otherwise the name. Raises UsageError."""
    return _id(Path(image)) if _is_file(image) else image


def fetch(image: str, engine: Engine) -> Image:
    """The image in the engine: loaded or pulled if it is missing there. Raises UsageError."""
    wanted = name(image)
    try:
        found = docker.find_image_at(engine.endpoint, wanted)
        if found is None:
            _get(image, engine)
            found = docker.find_image_at(engine.endpoint, wanted)
    except (DockerException, requests.RequestException) as error:
        reason = " ".join(str(getattr(error, "explanation", None) or error).split())
        raise UsageError(
            f"--image {image}: {engine.name} does not have it, and failed to get it: {reason}: check the name, or "
            "use a file of ./inv export --format docker"
        ) from None
    if found is None:
        raise UsageError(f"--image {image}: {engine.name} loaded it, but has no image {wanted}: export it again")
    return _image(found, wanted)


def _get(image: str, engine: Engine) -> None:
    with closing(connect(engine.endpoint, _SILENCE_SECONDS)) as client:
        if _is_file(image):
            say(f"loading {image} into {engine.name}")
            with Path(image).open("rb") as stream:
                client.images.load(stream)
        else:
            say(f"pulling {image}")
            _pull(client, image)


def of_pin(pin: Pin, engine: Engine) -> Image:
    """The pin's image in an engine where ./inv does not build. Raises UsageError if it is missing."""
    for tag in (pin.image, pin.shared_tag):
        if found := docker.find_image_at(engine.endpoint, tag):
            return _image(found, tag)
    raise UsageError(
        f"{engine.name} has no image {pin.shared_tag}, and ./inv builds with Docker only: on a machine with "
        "Docker, run ./inv export --format docker --output stack.tar; here, add --image stack.tar, or the name of "
        "an image in a registry"
    )


def _is_file(image: str) -> bool:
    path = Path(image)
    if image.endswith((".tar", "/")) or image.startswith((".", "/")) or path.is_file():
        if not path.is_file():
            found = "a folder" if path.is_dir() else "missing"
            raise UsageError(f"--image {image} is {found}, expected a file of ./inv export --format docker")
        return True
    return False


def _id(path: Path) -> str:
    """The ID of the image in an archive of docker image save."""
    try:
        with tarfile.open(path) as archive:
            manifest = archive.extractfile("manifest.json")
            entries: list[dict[str, Any]] = json.load(manifest) if manifest else []
            (entry,) = entries
        return "sha256:" + Path(entry["Config"]).name.removesuffix(".json")
    except PermissionError:
        raise UsageError(f"--image {path}: you may not read this file: change its mode or its owner") from None
    except (OSError, EOFError, KeyError, TypeError, ValueError, tarfile.TarError, zlib.error):
        raise UsageError(
            f"--image {path} is not an archive with one image, expected a file of ./inv export --format docker"
        ) from None


def _pull(client: DockerClient, image: str) -> None:
    """Raises DockerException with the registry's message, which podman sends after the status 200."""
    for line in client.api.pull(image, stream=True, decode=True):
        if "error" in line:
            raise DockerException(line["error"])


def _image(found: LocalImage, tag: str) -> Image:
    return Image(tag, found.id, found.size_bytes, built=False, seconds=0.0)
