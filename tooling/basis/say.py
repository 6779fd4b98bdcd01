"""Progress messages: on standard error, because standard output belongs to a command's result."""

import sys


def say(line: str) -> None:
    """Print one line and flush."""
    print(line, file=sys.stderr, flush=True)


def last_line(output: str) -> str:
    """The last line of a program's output: in most programs, the reason for a failure."""
    return (output.strip().splitlines() or ["no message"])[-1]
