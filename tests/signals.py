"""Signals as a process at a terminal has them, whoever started the tests."""

from __future__ import annotations

import signal


def as_at_a_terminal() -> None:
    """For Popen: a shell starts background jobs deaf to SIGINT, nohup to SIGHUP, and children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
