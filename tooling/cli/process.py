"""What a task expects of its process, under ./inv and under plain invoke."""

import io
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from invoke.exceptions import Exit

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tooling.basis.paths import explain_error


def bad_usage(line: str) -> Exit:
    """The error that plain invoke, too, prints as one line, with exit code 2."""
    return Exit(line, contract.USAGE_EXIT_CODE)


@contextmanager
def guarded() -> Iterator[None]:
    """Exit with one line and code 2 for an error that the user can fix, and with 128 + N after signal N.

    Raises invoke's Exit.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # "…" is not in the character set of every locale
    if os.geteuid() == 0:  # then containers run as another user, who has to read the files that root writes
        os.umask(os.umask(0o022) & 0o022)
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                stack.callback(signal.signal, number, signal.signal(number, _terminate))
        try:
            for word in sys.argv:
                if word.encode(errors="replace").decode() != word:
                    raise UsageError(f"found the argument {word!r}, expected text in UTF-8")
            try:
                yield
            finally:  # flush here, because a closed pipe cannot be caught when the interpreter exits
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise Exit(code=contract.INTERRUPTED_EXIT_CODE) from None
        except UsageError as error:
            raise Exit(str(error), error.exit_code) from error
        except (OSError, SystemExit) as error:
            # rich exits with 1 while it handles a closed pipe, as in `./inv matrix | head -1`
            if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
                _discard_output()
                raise Exit(code=128 + signal.SIGPIPE) from None
            if isinstance(error, SystemExit) or not (line := explain_error(error)):
                raise
            _discard_output()
            raise bad_usage(line) from error
        except subprocess.TimeoutExpired as error:
            command = error.cmd if isinstance(error.cmd, str) else shlex.join(map(str, error.cmd[:2]))
            raise bad_usage(
                f"{command} did not end within {error.timeout:.0f} s: check the engine (./inv doctor), and "
                "run the same command again"
            ) from error


def _terminate(signum: int, _frame: object) -> None:
    """Exit through an exception, so that a task's `finally` blocks remove what the task has started."""
    sys.exit(128 + signum)


def _discard_output() -> None:
    """Discard what stdout cannot take: the interpreter would try to write it again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
