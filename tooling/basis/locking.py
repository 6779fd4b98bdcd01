"""One command at a time: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class TakenError(Exception):
    """Another process holds the lock."""


@contextmanager
def alone(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Holds the lock file `path`. If it is taken: calls `waiting` and waits; without one, raises TakenError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise TakenError from None
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
