"""The end of a rank: it records its error for torchrun's agent, then exits. Torch-free.

torchrun's agent names a file for each rank in TORCHELASTIC_ERROR_FILE. It reports the error in that file, and the
file's time shows when the rank failed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import MeetingError, UsageError, line_of
from cpu_train_stack.cli.files import write_atomic
from cpu_train_stack.cli.say import say

_ATEXIT_SECONDS = 10.0


def record(error: BaseException) -> None:
    """Write `error` to the agent's file, in torchrun's format. Without an agent, do nothing."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not name or Path(name).exists():  # the first error is the cause
        return
    printed = isinstance(error, UsageError) or (
        isinstance(error, SystemExit) and error.code == contract.USAGE_EXIT_CODE
    )
    details = {
        "py_callstack": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "timestamp": str(int(time.time())),
    }
    # "printed": this rank has printed the error. "again": a restart may succeed.
    document = {
        "message": {"message": f"{type(error).__name__}: {error}", "extraInfo": details},
        "printed": printed,
        "again": not printed or isinstance(error, MeetingError),
    }
    try:
        write_atomic(Path(name), json.dumps(document))  # torchrun fails at an incomplete file
    except OSError as problem:
        say(f"warning: the launcher cannot report this rank's error: {problem}")


def report_usage_error(error: UsageError) -> int:
    """Print the error's line and record the error. Returns the exit code."""
    say(f"error: {line_of(error)}")
    record(error)
    return error.exit_code


def exit_failed(code: int) -> NoReturn:
    """End this failed process. Its exit handlers run, but for _ATEXIT_SECONDS at most.

    A normal exit waits for other threads and for the process group's destructors. Both may wait for peers that
    wait for this rank.
    """
    limit = threading.Timer(_ATEXIT_SECONDS, os._exit, (code,))
    limit.daemon = True
    limit.start()
    _exit(code)


def exit_finished() -> NoReturn:
    """End this successful process as the interpreter does, but without finalizing the interpreter.

    A thread of gloo may still hold the tensors of the last collective. To free them, it takes the interpreter's
    lock. During finalization, the interpreter ends such a thread in the middle of a C++ destructor: "terminate
    called without an active exception", SIGABRT (torch 2.13 with Python 3.11; nearly one in three jobs of two
    ranks that ended with all_gather_object).
    """
    # The interpreter's own first step: without it, the threads of a pool that is not shut down never end
    # (torch.compile keeps such a pool).
    for shut_down in reversed(getattr(threading, "_threading_atexits", ())):
        shut_down()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    _exit(0)


def _exit(code: int) -> NoReturn:
    # Python 3.9 prints the error of an exit handler, and raises the last one again.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a closed pipe must not change the exit code
            continue
    os._exit(code)
