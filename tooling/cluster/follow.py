"""Copies the output of a cluster's containers to the terminal and to a file, with node names before the lines."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from docker import DockerClient
from docker.errors import APIError
from docker.models.containers import Container
from urllib3.exceptions import HTTPError

from tooling.cluster.nodes import PROJECT_LABEL, SERVICE_LABEL, detect_lost_engine
from tooling.engine.client import connect

# A stream ends with its container. After the job, wait at most this long for the streams to end.
END_SECONDS = 10.0
# The time between two attempts to continue reading from a lost engine.
AGAIN_SECONDS = 1.0


@contextmanager
def following(endpoint: str, project: str, log: Path, shown: BinaryIO) -> Iterator[None]:
    """Copy the output of the project's containers, from its beginning, to `shown` and to the end of `log`."""
    with detect_lost_engine(endpoint):
        client = connect(endpoint)
        containers = _containers(client, project)
    lock, over = threading.Lock(), threading.Event()
    readers = []
    with log.open("ab") as file:
        for container in containers:
            arguments = (container, (file, shown), lock, over)
            readers.append(threading.Thread(target=_copy, args=arguments, daemon=True))
        for reader in readers:
            reader.start()
        try:
            yield
            for reader in readers:
                reader.join(timeout=END_SECONDS)
        finally:
            over.set()
            with lock:  # a reader that still runs must not write to a closed file
                client.close()


def copy(endpoint: str, project: str, shown: BinaryIO, *, follow: bool = False) -> None:
    """Copy the output of the project's containers so far or, with `follow`, until they end."""
    with detect_lost_engine(endpoint), closing(connect(endpoint)) as client:
        containers = sorted(_containers(client, project), key=lambda container: str(container.name))
        if not follow:
            for container in containers:
                with suppress(APIError):  # the container was removed, or its engine keeps no output
                    for line in lines(container.logs(stream=True, follow=False)):
                        shown.write(_prefix(container) + line)
            return
        lock, over, closed = threading.Lock(), threading.Event(), threading.Event()
        over.set()  # do not wait for an engine that is lost
        readers = [
            # Daemons: Ctrl-C ends the command, although they still read.
            threading.Thread(target=_copy, args=(container, (shown,), lock, over, closed), daemon=True)
            for container in containers
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            while reader.is_alive() and not closed.is_set():
                reader.join(timeout=0.2)
        if closed.is_set():
            raise BrokenPipeError


def _containers(client: DockerClient, project: str) -> list[Container]:
    return list(client.containers.list(all=True, filters={"label": f"{PROJECT_LABEL}={project}"}))


def _prefix(container: Container) -> bytes:
    return f"{container.labels[SERVICE_LABEL]} | ".encode()


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Complete lines from a stream of chunks. If the last line has no newline, append one."""
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in complete)
    if rest:
        yield rest + b"\n"


def _copy(
    container: Container,
    targets: tuple[BinaryIO, ...],
    lock: threading.Lock,
    over: threading.Event,
    closed: threading.Event | None = None,
) -> None:
    """`over`: whether to stop when the stream ends.

    If nobody reads a target any more, `closed` is set and the copy ends. Without `closed`, the other targets still
    get all lines.
    """
    copied, prefix = 0, _prefix(container)
    while True:
        try:
            for line in islice(lines(container.logs(stream=True, follow=True)), copied, None):
                with lock:
                    are_read = [_write(target, prefix + line) for target in targets]
                if closed and not all(are_read):
                    closed.set()
                    return
                copied += 1
            container.reload()
            if container.status not in ("running", "paused"):
                return
        except APIError:
            return  # the container was removed; wait.until_end reports its end
        except (OSError, HTTPError):
            pass  # the engine is lost: try again
        if over.wait(AGAIN_SECONDS):
            return


def _write(target: BinaryIO, line: bytes) -> bool:
    """False if nobody reads `target` any more."""
    try:
        if not target.closed:
            target.write(line)
            target.flush()
    except BrokenPipeError:
        return False
    return True
