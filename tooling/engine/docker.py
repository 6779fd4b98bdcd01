"""Commands of an engine's client that several rooms use: for one container and for one image."""

import hashlib
import json
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cpu_train_stack.cli import signals
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import LockedError, locked, parse_json, write_with_folder
from cpu_train_stack.cli.printable import last_line
from tooling.basis import identity
from tooling.basis.paths import CACHE
from tooling.engine import failures
from tooling.engine.client import connect

PREFIX = f"cts-once-{identity.IDENTITY}-"
CLIENT = ("docker",)
# SELinux does not let labelled containers read the folders of the host. Without SELinux, this has no effect.
UNLABELLED = "--security-opt=label=disable"
_REMOVE_SECONDS = 60.0
# A file for each container of run() and created(), with its name and the client. Its command has the file's lock.
_ONCE = CACHE / "once"
# What `docker run` uses of an image's configuration, beside the labels. Our images have nothing rare, for which
# engines write different things.
_CONFIGURATION = ("Entrypoint", "Cmd", "Env", "User", "WorkingDir")
_RARE = ("ExposedPorts", "Healthcheck", "StopSignal", "Volumes")
_LABEL = f"--label={identity.LABEL}={identity.IDENTITY}"


def run(
    image: str,
    command: Sequence[str],
    docker_arguments: Sequence[str] = (),
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    limit_seconds: float | None = None,
    stdin: IO[bytes] | None = None,
    client: Sequence[str] = CLIENT,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a new container with a /dev/shm of 1 GB, and remove the container.

    `client`: as Engine.client. Raises subprocess.TimeoutExpired after `limit_seconds`.
    """
    name = f"{PREFIX}{uuid.uuid4().hex}"
    argv = [*client, "run", "--rm", "--name", name, _LABEL, UNLABELLED, "--shm-size=1g"]
    argv += [*docker_arguments, image, *command]
    with _removed_later(name, client):
        return subprocess.run(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            check=False,
            timeout=limit_seconds,
            preexec_fn=signals.die_with_parent,
        )


@contextmanager
def _removed_later(name: str, client: Sequence[str]) -> Iterator[None]:
    """Remove the container at the end. At the beginning, remove those of commands that were killed."""
    record = _ONCE / name
    with ExitStack() as mine:
        with locked(_ONCE.with_suffix(".lock"), waiting=lambda: None):
            _remove_left()
            write_with_folder(record, json.dumps(client))
            mine.enter_context(locked(record, waiting=None))
        mine.callback(record.unlink, missing_ok=True)
        mine.callback(_remove, name, client)  # returns at once if --rm has removed the container
        yield


def remove_left() -> None:
    """Remove the containers of commands that were killed."""
    with locked(_ONCE.with_suffix(".lock"), waiting=lambda: None):
        _remove_left()


def _remove_left() -> None:
    for left in _ONCE.glob(f"{PREFIX}*"):
        with suppress(LockedError, FileNotFoundError, IsADirectoryError), locked(left, waiting=None):
            client = _client_of(left)
            if client and not _remove(left.name, client):
                return
            left.unlink()


def _client_of(record: Path) -> list[str]:
    """The command of the client in a record. Empty: its command has ended just now, or the file is damaged."""
    with suppress(ValueError):
        client = parse_json(record.read_text(encoding="utf-8"))
        if isinstance(client, list) and all(isinstance(word, str) for word in client):
            return client
    return []


def call(
    *arguments: str, limit_seconds: float | None = None, client: Sequence[str] = CLIENT
) -> subprocess.CompletedProcess[str]:
    """The result of a command of the client, with its output."""
    argv = [*client, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_seconds)


def _remove(name: str, client: Sequence[str]) -> bool:
    """Remove a container, even if the user presses Ctrl-C again. Give up on an engine that does not answer.

    Returns False if the container may still exist.
    """
    argv = [*client, "rm", "--force", name]
    # In its own session, the client gets no Ctrl-C from the terminal.
    try:
        with signals.delayed():
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, start_new_session=True, timeout=_REMOVE_SECONDS
            )
    except subprocess.TimeoutExpired:
        return False
    except OSError:  # the client has been removed, and maybe its engine
        return True
    return done.returncode == 0 or "no such container" in done.stderr.lower()


def output(*arguments: str, client: Sequence[str] = CLIENT) -> str:
    """The standard output of a quick command that must succeed. Raises UsageError."""
    done = call(*arguments, limit_seconds=60, client=client)
    if done.returncode != 0:
        raise UsageError(f"{client[0]} {arguments[0]} failed: {last_line(done.stderr)}")
    return done.stdout


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

    @property
    def content_sha256(self) -> str:
        """The digest of the layers and of what `docker run` uses of the configuration, without the labels.

        Unlike the image's ID, it is equal in all engines.
        """
        used = {key: self.configuration.get(key) for key in _CONFIGURATION}
        used |= {key: self.configuration[key] for key in _RARE if self.configuration.get(key)}
        return hashlib.sha256(json.dumps([self.layers, used], sort_keys=True).encode()).hexdigest()


def find_image(reference: str) -> LocalImage | None:
    """The image in the engine, or None."""
    result = call("image", "inspect", "--format", "{{json .}}", reference)
    if result.returncode != 0:
        return None
    return _local_image(json.loads(result.stdout))


def find_image_at(endpoint: str, reference: str) -> LocalImage | None:
    """The image in the engine at `endpoint`, which may be podman, or None."""
    with closing(connect(endpoint)) as client:
        try:
            return _local_image(client.images.get(reference).attrs)
        except failures.NotFound:
            return None


def read_image_at(endpoint: str, reference: str) -> LocalImage:
    """The image in the engine at `endpoint`. Raises UsageError if it is missing."""
    image = find_image_at(endpoint, reference)
    if image is None:
        raise UsageError(
            f"image {reference} is no longer in the engine at {endpoint}, expected until the command ends: it was "
            "removed, or a build replaced it: run the same command again"
        )
    return image


def _local_image(document: Mapping[str, Any]) -> LocalImage:
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
    call("image", "rm", reference)


@contextmanager
def created(image: LocalImage, client: Sequence[str] = CLIENT) -> Iterator[str]:
    """A container of the image that never runs: an engine exports the file systems of containers.

    With a command, which an image need not have.
    """
    name = f"{PREFIX}{uuid.uuid4().hex}"
    with _removed_later(name, client):
        output("container", "create", "--name", name, _LABEL, image.id, "true", client=client)
        yield name
