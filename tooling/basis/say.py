"""Progress lines: on standard error, so that standard output stays the command's own."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Prints one line of progress at once."""
    print(line, file=sys.stderr, flush=True)
