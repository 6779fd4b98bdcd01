"""Messages for the user: on standard error, because standard output belongs to a command's result."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print one line and flush."""
    print(line, file=sys.stderr, flush=True)
