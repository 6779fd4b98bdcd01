"""SIGTERM to a launcher: the ranks save a checkpoint after their step, and end with STOPPED_EXIT_CODE.

A launcher gives its ranks a folder (contract.DRAIN). Ranks of `train` that can save write the file READY to it
while they train. After the first SIGTERM, the launcher writes the file STOP, and the ranks of all nodes stop at
the same step (train/loop/stopping.py). The job ends at once if the ranks cannot save, if they have not saved in
time, and after a second SIGTERM.
Torch-free.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.cli.say import say

READY, STOP = "ready", "stop"
# Docker kills a container 10 s after SIGTERM.
DEFAULT_SECONDS = 8
MOST_SECONDS = 86400


def grace_seconds(environ: Mapping[str, str]) -> int:
    """How long the ranks may take. 0: a SIGTERM ends the job at once. Raises UsageError."""
    text = environ.get(contract.GRACE_SECONDS, "")
    seconds = whole_number(text) if text else DEFAULT_SECONDS
    if seconds is None or not 0 <= seconds <= MOST_SECONDS:
        raise UsageError(f"{contract.GRACE_SECONDS} is {text!r}, expected seconds from 0 to {MOST_SECONDS}")
    return seconds


def note(seconds: int) -> str:
    return (
        f"note: SIGTERM: the ranks save a checkpoint within {seconds} s, and end; a second SIGTERM ends them now"
    )


class LastCheckpoint:
    """The first SIGTERM of a launcher whose ranks run on this node."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`folder`: for the ranks' contract.DRAIN."""
        self._folder, self._seconds = folder, grace_seconds(environ)
        self._until: float | None = None
        self._is_noted = False
        self._otherwise: Any = None

    def handle(self) -> None:
        """Handle SIGTERM from now on. Where there is nothing to save, the present handler gets it."""
        present = signal.getsignal(signal.SIGTERM)
        if present != self._asked and callable(present):
            self._otherwise = present
            signal.signal(signal.SIGTERM, self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._until is None and self._seconds and (self._folder / READY).exists():
            self._until = time.monotonic() + self._seconds
            (self._folder / STOP).touch()
        else:
            self._otherwise(number, frame)

    def check(self) -> None:
        """Call it regularly. Calls the earlier handler if the ranks have not ended in time."""
        if self._until is None:
            return
        if not self._is_noted:
            self._is_noted = True
            say(note(self._seconds))
        if time.monotonic() > self._until:
            self._otherwise(signal.SIGTERM, None)


def files_of(environ: Mapping[str, str]) -> list[Path]:
    """In a rank: the files that ask it to stop, of the user and of its launcher."""
    own, drain = environ.get(contract.STOP), environ.get(contract.DRAIN)
    return [*([Path(own)] if own else []), *([Path(drain) / STOP] if drain else [])]


def ready_file(environ: Mapping[str, str]) -> Path | None:
    """In a rank: the file that tells its launcher that it can save. None without such a launcher."""
    drain = environ.get(contract.DRAIN)
    return Path(drain) / READY if drain else None
