"""image.lock.json: which image was pushed. ./inv push writes the file, and --image-lock reads it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json, read_given, write_with_folder
from cpu_train_stack.cli.say import say
from tooling.engine import docker
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.registry import Registry, Target

_IMAGE = re.compile(r"(?P<target>[A-Za-z0-9][^@\s]*)@(?P<digest>sha256:[0-9a-f]{64})")
_SUM = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageLock:
    """`image`: HOST/NAME@sha256:…. `tag`: HOST/NAME:TAG, which never moves. `revision`: the commit."""

    image: str
    tag: str
    pin: str
    revision: str
    labels: Mapping[str, str]
    sbom_sha256: str


def write(lock: ImageLock, path: Path) -> None:
    """Replace the file atomically."""
    write_with_folder(path, json.dumps(asdict(lock), indent=2) + "\n")


def read(path: Path) -> ImageLock:
    """Read a file that ./inv push wrote. Raises UsageError if it is another file."""
    names = [field.name for field in fields(ImageLock)]
    try:
        document = _parse(path)
        if not isinstance(document, dict) or {*document} != {*names}:
            raise ValueError(f"expected a JSON object with {', '.join(names)}, and nothing else")
        lock = ImageLock(**document)
        texts = (lock.image, lock.tag, lock.pin, lock.revision, lock.sbom_sha256)
        if not all(isinstance(text, str) for text in texts) or not isinstance(lock.labels, dict):
            raise ValueError("a value has the wrong type")
        if not _IMAGE.fullmatch(lock.image):
            raise ValueError(f"image is {lock.image!r}, expected HOST/NAME@sha256:…")
        if not _SUM.fullmatch(lock.sbom_sha256):
            raise ValueError(f"sbom_sha256 is {lock.sbom_sha256!r}, expected 64 hex digits")
    except FileNotFoundError:
        raise UsageError(f"--image-lock {path} does not exist: ./inv push writes this file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--image-lock {path} is not a file written by ./inv push: {why}") from None
    return lock


def _parse(path: Path) -> object:
    try:
        return parse_json(read_given(path))
    except ValueError:
        raise ValueError("it is not JSON") from None


def fetch(lock: ImageLock, engine: Engine) -> Image:
    """The locked image, pulled by its digest if it is not in the engine. Its labels must be those in the lock."""
    target, _, digest = lock.image.partition("@")
    image = docker.find_image_at(engine.endpoint, lock.image)
    if image is None:
        say(f"pulling {lock.image}")
        Registry(engine.endpoint, Target.parse(target)).pull(digest)
        image = docker.find_image_at(engine.endpoint, lock.image)
    if image is None or image.labels != lock.labels:
        raise UsageError(f"the labels of {lock.image} differ from its lock: push the image again")
    return Image(lock.image, image.id, image.size_bytes, built=False, seconds=0.0)
