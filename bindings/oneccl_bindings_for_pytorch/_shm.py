"""The files that libfabric's shared-memory provider creates in /dev/shm: unique names, and cleanup.

While a process has a communicator, it has a file of about 64 MB, named PROCESS:USER:NUMBER. The provider removes
the file at a normal exit only. The provider relies on unique process ids, but containers that share /dev/shm have
equal ones.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

DIRECTORY = Path("/dev/shm")  # noqa: S108  libfabric's path
# Files of unknown processes are kept for this long: such a process may be running in another container.
STALE_SECONDS = 600.0
COUNTER = "smr_global_ep_idx"

_counter = ctypes.c_int(0)
_created: set[Path] = set()


def prepare(provider: ctypes.CDLL) -> None:
    """Start NUMBER at a random value, and remove stale files of this user."""
    global _counter
    try:
        _counter = ctypes.c_int.in_dll(provider, COUNTER)
    except ValueError:
        return  # the provider does not export its counter, so its names cannot be changed
    if _counter.value == 0:
        _counter.value = secrets.randbelow(2**30) + 1
    _remove_stale()
    atexit.register(_remove_own)


@contextlib.contextmanager
def recorded(opened_by_all: bool) -> Iterator[None]:
    """Call `created` for the files of this block. If the block raises, some ranks may not have opened them."""
    first = _counter.value
    is_complete = False
    try:
        yield
        is_complete = True
    finally:
        numbers = range(first, _counter.value)
        # Each worker of oneCCL has a file. The ranks open those of the first workers while they connect, and those
        # of the others, by name, when these workers send their first messages.
        created(numbers, opened_by_all and is_complete and len(numbers) <= 1)


def created(numbers: Iterable[int], opened_by_all: bool) -> None:
    """Remove the files with these numbers if all ranks have opened them, else when the process exits."""
    files = {DIRECTORY / f"{os.getpid()}:{os.geteuid()}:{number}" for number in numbers}
    if opened_by_all:
        _remove(files)
    else:
        _created.update(files)


def _remove(files: set[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _remove_own() -> None:
    """Remove the files of this process; in a forked child, not those of its parent."""
    _remove({file for file in _created if file.name.startswith(f"{os.getpid()}:")})


def _remove_stale() -> None:
    """Of this user. A file that cannot be removed stays: another rank may have removed it."""
    files: list[Path] = []
    with contextlib.suppress(OSError):
        files += DIRECTORY.iterdir()
    for file in files:
        name = re.fullmatch(rf"(\d+):{os.geteuid()}:\d+", file.name)
        if name is None or Path(f"/proc/{name[1]}").exists():
            continue
        with contextlib.suppress(OSError):
            found = file.stat()
            # In containers of different users, users of the host can have the same number.
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > STALE_SECONDS:
                file.unlink()
