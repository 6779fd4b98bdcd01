"""Progress messages: on standard error, because standard output belongs to a command's result."""

import os
import sys

from cpu_train_stack.cli.printable import printable


def say(line: str) -> None:
    """Print one line and flush. If standard error is closed or its terminal is gone, do nothing from then on."""
    try:
        # In one piece, because threads call this, too.
        print(f"{printable(line)}\n", end="", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def last_line(output: str) -> str:
    """The last line of a program's output: in most programs, the reason for a failure."""
    return (output.strip().splitlines() or ["no message"])[-1]
