"""`python -m tooling`, started by ./inv: runs the tasks of tasks.py where the user stands."""

from __future__ import annotations

import os
import signal
import sys

import tasks
from entrypoints import contract
from tooling.cli.parser import TaskProgram


def _terminate(signum: int, _frame: object) -> None:
    """An exception, not an abrupt end, so that what a task has started is torn down by its `finally`."""
    sys.exit(128 + signum)


def main() -> None:
    """Exits with 0, 2 after bad usage, 128 + N after signal N, otherwise the task's own code."""
    os.chdir(os.environ.pop("INV_CWD", "."))
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asks for it
            signal.signal(number, _terminate)
    try:
        try:
            TaskProgram(tasks.SECTIONS).run()
        finally:  # here and not at the interpreter's end, where a closed pipe can no longer be caught
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(contract.INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:  # `./inv --list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


main()
