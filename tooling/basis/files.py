"""Files that several processes use: hashes, atomic writes, and locks."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

from entrypoints.machine import files


def sha256_of(path: Path) -> str:
    """The hex sha256 of a file."""
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def write_atomic(path: Path, text: str) -> None:
    """Replace a file atomically, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, text)


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`. The lock ends with the process, even if the process is killed.

    If another process holds the lock, call `waiting` and wait. Without `waiting`, raise LockedError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise LockedError from None
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
