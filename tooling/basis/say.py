"""Progress messages: on standard error, because standard output belongs to a command's result."""

import os
import sys


def say(line: str) -> None:
    """Print one line and flush. If standard error is closed or its terminal is gone, do nothing from then on."""
    try:
        print(f"{line}\n", end="", file=sys.stderr, flush=True)  # in one piece, because threads call this, too
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def last_line(output: str) -> str:
    """The last line of a program's output: in most programs, the reason for a failure."""
    return (output.strip().splitlines() or ["no message"])[-1]
