"""Messages for the user on standard error, and a command's result on standard output."""

from __future__ import annotations

import errno
import os
import signal
import sys

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import FULL_DISK
from cpu_train_stack.cli.printable import printable


def say(line: str) -> None:
    """Print one or more lines in a single write, because mpirun and Docker put a prefix before each write.

    If standard error is closed or its terminal is gone, do nothing from then on. A full disk loses the line.
    """
    try:
        print(f"{printable(line)}\n", end="", file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EIO, errno.EPIPE):
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def show(result: str) -> None:
    """Print a result on standard output and flush. Exits if nobody reads it, or if its disk is full."""
    try:
        print(printable(result), flush=True)
    except OSError as error:
        raise SystemExit(lost_output(error)) from error


def lost_output(error: OSError) -> int:
    """The exit code for a result that cannot be printed: its pipe is closed, or its disk is full.

    Prints the error of a full disk. Raises any other error.
    """
    if isinstance(error, BrokenPipeError):  # `entrypoint plan | head -1`
        return 128 + signal.SIGPIPE
    if error.errno not in FULL_DISK:
        raise error
    where = f"'{error.filename}'" if error.filename else "the result"
    say(f"error: cannot write {where} ({os.strerror(error.errno)}): free some space, and run the command again")
    return contract.USAGE_EXIT_CODE
