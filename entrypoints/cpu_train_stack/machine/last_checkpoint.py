"""After SIGTERM, ranks of `train` save a checkpoint and exit with STOPPED_EXIT_CODE.

A launcher gives its ranks a folder (contract.DRAIN). Ranks of `train` that can save write the file READY to it
while they train. After the first SIGTERM, the launcher writes the file STOP, and the ranks of all nodes stop at
the same step (train/loop/stopping.py). The job ends at once if the ranks cannot save, if they have not saved in
time, and after a second SIGTERM. A rank that another launcher started
creates the folder itself, and does what the launcher would do.
Torch-free.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import whole_number

READY, STOP = "ready", "stop"
# Docker kills a container 10 s after SIGTERM.
DEFAULT_SECONDS = 8
MOST_SECONDS = 86400


def grace_seconds(environ: Mapping[str, str]) -> int:
    """How long the ranks have to save. 0: SIGTERM ends the job at once. Raises UsageError."""
    text = environ.get(contract.GRACE_SECONDS, "")
    seconds = whole_number(text) if text else DEFAULT_SECONDS
    if seconds is None or not 0 <= seconds <= MOST_SECONDS:
        raise UsageError(f"{contract.GRACE_SECONDS} is {text!r}, expected seconds from 0 to {MOST_SECONDS}")
    return seconds


def note(seconds: int, node: str = "") -> str:
    """`node`: the one that received SIGTERM, if it was not the launcher."""
    what = f"the ranks save a checkpoint within {seconds} s, and end"
    return f"note: {node}: {what}" if node else f"note: SIGTERM: {what}; a second SIGTERM ends them now"


class LastCheckpoint:
    """Handles SIGTERM in a launcher whose ranks run on this node, or in a rank."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`folder`: the ranks find it in the variable contract.DRAIN."""
        self._folder, self._seconds = folder, grace_seconds(environ)
        self._otherwise: Any = None
        self.is_asked = False

    def handle(self) -> None:
        """Install the handler. The earlier one is called if the ranks cannot save, or have not saved in time."""
        present = signal.getsignal(signal.SIGTERM)
        if present != self._asked and callable(present):
            self._otherwise = present
            signal.signal(signal.SIGTERM, self._asked)
            signal.signal(signal.SIGALRM, lambda _number, frame: self._otherwise(signal.SIGTERM, frame))

    def handle_in_thread(self) -> None:
        """Handle SIGTERM in a rank of a group: Python runs no handler while the main thread waits in a collective.

        SIGTERM ends the process if it cannot save, or has not saved in time.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # In a forked child, such as a data loader's process, SIGTERM must not reach this process through the pipe.
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_default)
        threading.Thread(target=self._save_or_end, args=(reader,), name="SIGTERM", daemon=True).start()

    def _save_or_end(self, reader: int) -> None:
        _wait_for_sigterm(reader)
        if self._can_save():
            self._ask()
            _wait_for_sigterm(reader, self._seconds)
        shutil.rmtree(self._folder, ignore_errors=True)
        # Python's signal.signal works in the main thread only.
        ctypes.CDLL(None).signal(signal.SIGTERM, ctypes.c_void_p(signal.SIG_DFL))
        os.kill(os.getpid(), signal.SIGTERM)

    def forget_ranks(self) -> None:
        """Delete READY, which ranks that have failed leave behind."""
        with suppress(OSError):
            (self._folder / READY).unlink()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked or not self._can_save():
            self._otherwise(number, frame)
            return
        self.is_asked = True
        self._ask()
        signal.alarm(self._seconds)

    def _can_save(self) -> bool:
        return bool(self._seconds) and (self._folder / READY).exists()

    def _ask(self) -> None:
        with suppress(OSError):
            (self._folder / STOP).touch()
        # Not `say`: the signal may have interrupted a print.
        with suppress(OSError):
            os.write(sys.stderr.fileno(), f"{note(self._seconds)}\n".encode())


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _restore_default() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


def _wait_for_sigterm(reader: int, seconds: float | None = None) -> None:
    """Return at a SIGTERM, or after `seconds`. `reader`: gets the number of each signal as a byte."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([reader], [], [], left)[0] or signal.SIGTERM in os.read(reader, 64):
            return


def files_of(environ: Mapping[str, str]) -> list[Path]:
    """The files of the user and of the launcher that ask this rank to stop."""
    own, drain = environ.get(contract.STOP), environ.get(contract.DRAIN)
    return [*([Path(own)] if own else []), *([Path(drain) / STOP] if drain else [])]


def ready_file(environ: Mapping[str, str]) -> Path | None:
    """The file by which this rank tells its launcher that it can save. None without such a launcher."""
    drain = environ.get(contract.DRAIN)
    return Path(drain) / READY if drain else None
