"""`python -m tooling`, which ./inv starts: runs the tasks in the user's current folder."""

import os
import sys

_MISSING = "inv: {}, expected it in .venv: delete .venv, and run the same command again"
try:
    from invoke.exceptions import Exit

    import tasks
    from cpu_train_stack.cli.errors import UsageError
    from cpu_train_stack.cli.say import say
    from tooling.cli import parser
    from tooling.cli.process import guarded
except ModuleNotFoundError as error:
    print(_MISSING.format(error), file=sys.stderr)
    sys.exit(2)


def main() -> int:
    """0, 2 after bad usage, 128 + N after signal N, otherwise the task's exit code."""
    folder = os.environ.pop("INV_CWD", ".")
    try:
        with guarded():
            try:
                os.chdir(folder)
            except OSError as error:
                raise UsageError(f"{folder}: {error.strerror}: change to a folder that you can read") from None
            parser.main(sys.argv, tasks.SECTIONS)
    except Exit as end:
        if end.message:
            say(end.message)
        return end.code
    except ModuleNotFoundError as error:  # tasks import some packages when they need them
        say(_MISSING.format(error))
        return 2
    return 0


sys.exit(main())
