"""Signals as a process at a terminal has them, whoever started the tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def as_at_a_terminal() -> None:
    """For Popen: a shell starts background jobs deaf to SIGINT, nohup to SIGHUP, and children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def default_handlers() -> Iterator[None]:
    """The handlers of a command at a terminal, in the process of the tests."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def interrupt() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
