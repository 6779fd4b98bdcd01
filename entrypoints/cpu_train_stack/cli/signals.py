"""Signals that end a command, such as Ctrl-C."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent() -> None:
    """In a child before it runs its program (preexec_fn): kill -9 of this process ends it, too."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """From now on, processes below this one become its children when their parents end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def delayed() -> Iterator[None]:
    """Let the block finish, which removes what the command has started, before a signal ends the command."""
    if threading.current_thread() is not threading.main_thread():  # Python runs no handlers in other threads
        yield
        return
    received: list[int] = []
    handled = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, lambda number, _frame: received.append(number)) for number in handled}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
