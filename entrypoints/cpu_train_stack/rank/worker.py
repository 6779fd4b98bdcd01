"""One rank's process, after the exec: verify the preloads, do the work, report how it ended.

Only `cpu_train_stack.rank.start` starts this module, with its variables set.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, error_of_name, one_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine import last_checkpoint
from cpu_train_stack.plan import preload
from cpu_train_stack.rank import start, tracebacks
from cpu_train_stack.rank.exit import exit_failed, exit_finished, record, report_usage_error
from cpu_train_stack.records import writer
from cpu_train_stack.report import at_end


def main() -> NoReturn:
    # The collector would search the new modules of torch and transformers again and again: 1 s of a start of 5 s.
    gc.disable()
    _initialize_openmp()
    from cpu_train_stack.group.create import MEETING  # imports torch
    from cpu_train_stack.rank.work import work

    _buffer_lines()
    environment, preloaded = start.read_exported(os.environ)
    # The stack's launchers record how their ranks end, and handle SIGTERM. Under other launchers, the rank does.
    is_foreign = contract.RECORDS not in os.environ
    is_alone = is_foreign and environment.world_size == 1
    if is_alone:
        record_sigterm()
    for warning in preload.verify(preloaded):
        say(f"warning: rank {environment.rank}: {warning}")
    command, *argv = sys.argv[1:]
    why = ""
    try:
        with _folder_for_sigterm(is_alone) if is_foreign and command == "train" else nullcontext():
            code = work(command, argv, environment, preloaded)
    except UsageError as error:
        code, why = report_usage_error(error), str(error)
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            why = f"exit code {code}"
            record(error)
    except BaseException as error:  # noqa: BLE001 - every exception of the job ends the rank here
        is_script = command == "run"
        wrong = error_of_name(error) if isinstance(error, OSError) and not is_script else None
        if wrong is not None:
            code, why = report_usage_error(wrong), str(wrong)
        else:
            tracebacks.report(error, environment, MEETING[0] if MEETING else None, is_script=is_script)
            code = contract.INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1
            why = f"{type(error).__name__}: {one_line(error)}"
    stops = {contract.INTERRUPTED_EXIT_CODE: "SIGINT", contract.STOPPED_EXIT_CODE: "on request, with a checkpoint"}
    event = "stop" if code in stops else "failure" if code else "end"
    _finish_records(event, stops.get(code, why))
    if code:
        exit_failed(code)
    exit_finished()


def _initialize_openmp() -> None:
    """Let the preloaded OpenMP library read the CPUs of this process before torch is imported.

    With OMP_PLACES, OMP_PROC_BIND or GOMP_CPU_AFFINITY, torch's own libgomp, which is loaded but idle, binds the
    main thread to one core. The preloaded library would then place all threads on this core.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "omp_get_num_procs"):
        library.omp_get_num_procs()


@contextmanager
def _folder_for_sigterm(is_alone: bool) -> Iterator[None]:
    """A folder in which the handler of SIGTERM asks this rank for a last checkpoint, as a launcher does.

    `is_alone`: the handler is set when the training begins (record_sigterm).
    """
    last_checkpoint.grace_seconds(os.environ)
    with TemporaryDirectory(prefix="cpu-train-stack-") as folder:
        os.environ[contract.DRAIN] = folder
        if not is_alone:
            last_checkpoint.LastCheckpoint(Path(folder), os.environ).handle_in_thread()
        yield


def record_sigterm() -> None:
    """Record a SIGTERM before it ends this process, as any process, unless the script handles the signal.

    The handler is set when a training begins: libraries that save their own state at a SIGTERM, such as Lightning,
    also call the handler that they find.
    """
    writer.before_first(_handle_sigterm)


def _handle_sigterm() -> None:
    own = os.getpid()

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            if os.getpid() == own:  # forked children inherit this function
                _finish_records("stop", signal.Signals(number).name)
        finally:
            os.kill(os.getpid(), number)

    is_main = threading.current_thread() is threading.main_thread()  # only there, Python lets a handler be set
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, stop)
        if contract.DRAIN in os.environ:
            last_checkpoint.LastCheckpoint(Path(os.environ[contract.DRAIN]), os.environ).handle()


def _finish_records(event: str, why: str) -> None:
    """Write the last event of this rank's records, and rank 0's report."""
    for output in writer.finish(event, why):
        at_end.write(output)


def _buffer_lines() -> None:
    """Write each line in one call. Unbuffered, print writes the newline separately, after other ranks' lines."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _exit_code(error: SystemExit) -> int:
    """sys.exit's argument as an exit code: None is 0; any text is printed, and the code is 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # while torch is imported
        os._exit(contract.INTERRUPTED_EXIT_CODE)
