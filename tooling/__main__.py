"""`python -m tooling`, which ./inv starts: runs the tasks in the user's current folder."""

import io
import os
import signal
import sys

import tasks
from cpu_train_stack import contract
from tooling.basis.paths import explain_error
from tooling.cli.parser import TaskProgram


def _terminate(signum: int, _frame: object) -> None:
    """Exit through an exception, so that a task's `finally` blocks remove what the task has started."""
    sys.exit(128 + signum)


def main() -> None:
    """Exit with 0, with 2 after bad usage, with 128 + N after signal N, otherwise with the task's exit code."""
    folder = os.environ.pop("INV_CWD", ".")
    try:
        os.chdir(folder)
    except OSError as error:
        print(f"{folder}: {error.strerror}: change to a folder that you can read", file=sys.stderr)
        sys.exit(contract.USAGE_EXIT_CODE)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # "…" is not in the character set of every locale
    if os.geteuid() == 0:  # then containers run as another user, who has to read the files that root writes
        os.umask(os.umask(0o022) & 0o022)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _terminate)
    try:
        try:
            TaskProgram(tasks.SECTIONS).run()
        finally:  # flush here, because a closed pipe cannot be caught when the interpreter exits
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(contract.INTERRUPTED_EXIT_CODE)
    except (BrokenPipeError, SystemExit) as error:  # `./inv --list | head -1`
        # rich exits with 1 while it handles the error, as in `./inv matrix | head -1`
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        _discard_output()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # of the flush: TaskProgram explains the errors of tasks
        if (line := explain_error(error)) is None:
            raise
        _discard_output()
        print(line, file=sys.stderr)
        sys.exit(contract.USAGE_EXIT_CODE)


def _discard_output() -> None:
    """Discard what stdout still buffers: the interpreter would try to write it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


main()
