"""The files that libfabric's shared-memory provider makes in /dev/shm: unique names, and none left behind.

Each process makes one of about 64 MB while it has a communicator, named PROCESS:USER:NUMBER. The provider removes
it at an orderly end only. It takes process ids for unique; containers that share /dev/shm have equal ones.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path("/dev/shm")  # noqa: S108  the provider's own choice
# Files of unknown processes are left alone for so long: they may live in another container.
STALE_SECONDS = 600.0
COUNTER = "smr_global_ep_idx"

_counter = ctypes.c_int(0)
_made: set[Path] = set()


def prepare(provider: ctypes.CDLL) -> None:
    """Start the NUMBER of this process at random, and remove what dead processes of this user left long ago."""
    global _counter
    try:
        _counter = ctypes.c_int.in_dll(provider, COUNTER)
    except ValueError:
        return  # a provider that hides its counter: its names stay what they are
    if _counter.value == 0:
        _counter.value = secrets.randbelow(2**30) + 1
    _remove_stale()
    atexit.register(_remove_own)


def next_number() -> int:
    """The NUMBER of the next file of this process."""
    return _counter.value


def made(numbers: Iterable[int], opened_by_all: bool) -> None:
    """The files with these numbers exist now. Where all ranks have opened them their names are of no more use."""
    files = {DIRECTORY / f"{os.getpid()}:{os.geteuid()}:{number}" for number in numbers}
    if opened_by_all:
        _remove(files)
    else:
        _made.update(files)


def _remove(files: set[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _remove_own() -> None:
    """Not what a forked child has from its parent."""
    _remove({file for file in _made if file.name.startswith(f"{os.getpid()}:")})


def _remove_stale() -> None:
    for file in DIRECTORY.iterdir():
        name = re.fullmatch(rf"(\d+):{os.geteuid()}:\d+", file.name)
        if name is None or Path(f"/proc/{name[1]}").exists():
            continue
        try:
            if time.time() - file.stat().st_mtime > STALE_SECONDS:
                file.unlink()
        except FileNotFoundError:
            pass  # another rank was quicker
