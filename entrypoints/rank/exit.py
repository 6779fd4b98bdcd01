"""How a rank tells the agent that started it why it failed, and how a failing process ends. Torch-free.

torchrun's agent gives every rank a file name in TORCHELASTIC_ERROR_FILE; what is written there is the cause
that it reports, and the file's time tells which of several ranks failed first.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from entrypoints import contract
from entrypoints.cli.errors import MeetingError, UsageError

_ATEXIT_SECONDS = 10.0


def record(error: BaseException) -> None:
    """Leave `error` for the agent, in torchrun's format; nothing where there is no agent."""
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
    # "printed": the error has been printed. "again": a restart may succeed.
    document = {
        "message": {"message": f"{type(error).__name__}: {error}", "extraInfo": details},
        "printed": printed,
        "again": not printed or isinstance(error, MeetingError),
    }
    try:
        Path(name).write_text(json.dumps(document))
    except OSError as problem:
        print(f"the cause of the failure could not be left for the launcher: {problem}", file=sys.stderr)


def usage(error: UsageError) -> int:
    """Print the line, leave the cause for the agent. Returns the exit code."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    record(error)
    return contract.USAGE_EXIT_CODE


def how_it_ended(returncode: int, out_of_memory: bool = False) -> tuple[int, str]:
    """How a process ended: its exit code as a shell gives it, and in words. `returncode` is -N for signal N."""
    if returncode >= 0:
        return returncode, f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-returncode}"
    cause = ": out of memory (the container's limit)" if out_of_memory else ""
    return 128 - returncode, f"was killed by {name}{cause}"


def leave(code: int) -> NoReturn:
    """End this failing process for sure: what it registered for its end runs, but may not hang.

    A normal end waits for other threads and for destructors of the process group, which may wait for peers
    that wait for us.
    """
    limit = threading.Timer(_ATEXIT_SECONDS, os._exit, (code,))
    limit.daemon = True
    limit.start()
    _end(code)


def finish() -> NoReturn:
    """End this process, whose work is done, as the interpreter would, but without taking the interpreter down.

    A thread of gloo may still hold the tensors of the last collective. To free them it takes the interpreter's
    lock, and a thread that asks for it while the interpreter is taken down is ended in the middle of a C++
    destructor: "terminate called without an active exception", SIGABRT (torch 2.13 with Python 3.11; nearly
    one in three jobs of two ranks that ended with all_gather_object).
    """
    # What the interpreter does first: the threads of a pool that nobody has shut down would be waited for in vain
    # (torch.compile keeps such a pool).
    for leave in reversed(getattr(threading, "_threading_atexits", ())):
        leave()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    _end(0)


def _end(code: int) -> NoReturn:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a closed pipe must not change the exit code
            continue
    os._exit(code)
