"""--image: an image that was built elsewhere. A file of ./inv export, or a name in the engine or in a registry."""

import io
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import MOST_BYTES, parse_json
from cpu_train_stack.cli.say import say
from tooling.engine import docker, failures
from tooling.engine.api import Engine
from tooling.engine.client import connect
from tooling.engine.docker import LocalImage
from tooling.image.build import Image
from tooling.pins.pin import Pin

if TYPE_CHECKING:
    from docker import DockerClient

ImageOption = Annotated[
    str | None,
    "use this image instead of building one: ./FILE of ./inv export --format docker, or a name in the engine "
    "or in a registry",
]
# Loading an image of gigabytes, and pulling one.
_SILENCE_SECONDS = 600
# What reading an archive raises if the archive is damaged, or is none.
_DAMAGED = (OSError, EOFError, KeyError, TypeError, ValueError, tarfile.TarError, zlib.error)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*")
_CHUNK = 1 << 20
# What stays of an archive's lists. Other keys may be tags: Go also reads them from "repotags".
_LISTS = ("manifest.json", "index.json")
_KEPT = ("Config", "Layers", "schemaVersion", "mediaType", "digest", "size", "platform")
_ID = re.compile("sha256:[0-9a-f]{64}")
_SUFFIXES = (".tar", ".tar.gz", ".tar.xz", ".tgz")


def name(image: str) -> str:
    """What the engine calls the image: the ID of the image in a file, otherwise the name. Raises UsageError.

    An engine that keeps images in containerd uses another ID, which `fetch` finds.
    """
    if _is_file(image):
        return _ids(Path(image))[0]
    if not _NAME.fullmatch(image):  # the name gets into command lines, and into Compose's files
        raise UsageError(f"--image is {image!r}, expected ./FILE, or the name of an image")
    return image


def fetch(image: str, engine: Engine) -> Image:
    """The image in the engine: loaded or pulled if it is missing there. Raises UsageError."""
    names = _ids(Path(image)) if _is_file(image) else (image,)
    try:
        found = _find(names, engine) or _find((*names, *_get(image, engine)), engine)
    except (failures.DockerException, failures.RequestException, *_DAMAGED) as error:
        reason = " ".join(str(getattr(error, "explanation", None) or error).split())
        raise UsageError(
            f"--image {image}: {engine.name} does not have it, and failed to get it: {reason}: check the name, or "
            "use a file of ./inv export --format docker"
        ) from None
    if found is None:
        raise UsageError(
            f"--image {image}: {engine.name} loaded it, but has no image {' or '.join(names)}: export it again"
        )
    return found


def _find(names: Sequence[str], engine: Engine) -> Image | None:
    """The first of the names that the engine has."""
    for each in names:
        if found := docker.find_image_at(engine.endpoint, each):
            return _image(found, each)
    return None


def _get(image: str, engine: Engine) -> list[str]:
    """Load or pull the image. Returns the IDs that the engine prints for a loaded one."""
    with closing(connect(engine.endpoint, _SILENCE_SECONDS)) as client:
        if not _is_file(image):
            say(f"pulling {image}")
            _pull(client, image)
            return []
        say(f"loading {image} into {engine.name}")
        return [str(loaded.id) for loaded in client.images.load(cast(Any, _without_tags(Path(image))))]


def _without_tags(path: Path) -> Iterator[bytes]:
    """The archive without its tags, which may be those of other images in the engine, even of our own.

    Links stay links. Engines clean the names of members, so `./manifest.json` is manifest.json.
    """
    links: set[str] = set()
    with tarfile.open(path) as archive:
        for member in archive:
            content: IO[bytes] | None = archive.extractfile(member) if member.isreg() else None
            plain = _plain(member)
            is_list = plain.name in (*_LISTS, "repositories")
            if (is_list and content is None) or links.intersection(map(str, PurePosixPath(plain.name).parents)):
                raise UsageError(
                    f"{path}: {member.name} is a link, or in one: expected a file of ./inv export --format docker"
                )
            if plain.name == "repositories":
                continue
            if member.issym() or member.islnk():
                links.add(plain.name)
            if is_list and content:
                text = json.dumps(_untagged(parse_json(content.read(MOST_BYTES).decode()))).encode()
                plain.size, content = len(text), io.BytesIO(text)
            yield plain.tobuf()
            while content and (chunk := content.read(_CHUNK)):
                yield chunk
            yield b"\0" * (-plain.size % tarfile.BLOCKSIZE if content else 0)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The member with a header that every program reads in the same way."""
    plain = tarfile.TarInfo(posixpath.normpath(f"/{member.name}").lstrip("/").partition("\0")[0])
    plain.type = tarfile.REGTYPE if member.isreg() else member.type
    plain.linkname, plain.mode = member.linkname, member.mode
    plain.size = member.size if member.isreg() else 0
    return plain


def _untagged(document: Any) -> Any:
    if isinstance(document, list):
        return [_kept(entry) for entry in document]
    return {**_kept(document), "manifests": [_kept(entry) for entry in document["manifests"]]}


def _kept(entry: Any) -> dict[str, Any]:
    return {key: entry[key] for key in _KEPT if key in entry}


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
    """A path begins with a dot or a slash, or has an archive's suffix: what is in the folder decides nothing."""
    path = Path(image)
    if image.endswith((*_SUFFIXES, "/")) or image.startswith((".", "/")):
        if not path.is_file():
            found = "a folder" if path.is_dir() else "missing"
            raise UsageError(f"--image {image} is {found}, expected a file of ./inv export --format docker")
        return True
    return False


def _ids(path: Path) -> tuple[str, ...]:
    """The possible IDs of the image in an archive of docker image save.

    The digest of its configuration is the ID in Docker's own image store and in podman. The digest of its manifest
    is the ID in containerd's image store, the default of Docker 29.
    """
    try:
        with tarfile.open(path) as archive:
            (entry,) = _json(archive, "manifest.json")
            # Docker 25 and later write the index.
            index = _json(archive, "index.json") if "index.json" in archive.getnames() else {"manifests": []}
        configuration = "sha256:" + Path(entry["Config"]).name.removesuffix(".json")
        ids = (configuration, *(manifest["digest"] for manifest in index["manifests"]))
        if not all(map(_ID.fullmatch, ids)):
            raise ValueError(ids)
        return ids
    except PermissionError:
        raise UsageError(f"--image {path}: you may not read this file: change its mode or its owner") from None
    except _DAMAGED:
        raise UsageError(
            f"--image {path} is not an archive with one image, expected a file of ./inv export --format docker"
        ) from None


def _json(archive: tarfile.TarFile, name: str) -> Any:
    member = archive.extractfile(name)
    return parse_json(member.read(MOST_BYTES).decode()) if member else None


def _pull(client: "DockerClient", image: str) -> None:
    """Raises DockerException with the registry's message, which podman sends after the status 200."""
    for line in client.api.pull(image, stream=True, decode=True):
        if "error" in line:
            raise failures.DockerException(line["error"])


def _image(found: LocalImage, tag: str) -> Image:
    return Image(tag, found.id, found.size_bytes, built=False, seconds=0.0)
