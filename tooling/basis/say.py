"""Progress messages: on standard error, because standard output belongs to a command's result."""

import sys
from collections.abc import Callable

# Reports one line of progress. Functions that take long have a parameter `say` of this type.
Say = Callable[[str], None]


def say(line: str) -> None:
    """Print one line and flush."""
    print(line, file=sys.stderr, flush=True)


def last_line(output: str) -> str:
    """The last line of a program's output: in most programs, the reason for a failure."""
    return (output.strip().splitlines() or ["no message"])[-1]
