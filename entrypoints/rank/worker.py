"""One rank's work, after the exec: verify the preloads, create the process group, run the trainer or the script.

Only `entrypoints.rank.start` starts this module, with its variables set.
"""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from typing import NoReturn, Protocol

from entrypoints import contract
from entrypoints.cli.errors import UsageError, one_line
from entrypoints.cli.options import default_backend
from entrypoints.cli.say import say
from entrypoints.group import banner
from entrypoints.group.backends import check_backend
from entrypoints.group.banner import Announce
from entrypoints.group.create import MEETING, agree, initialize
from entrypoints.machine import cpus
from entrypoints.operators import attention, attention_rule, bf16_products, dropout, library
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.plan import preload
from entrypoints.rank import script, start, tracebacks
from entrypoints.rank.exit import exit_failed, exit_finished, record, report_usage_error
from entrypoints.records import writer
from entrypoints.report import at_end

# The timeout of a group that only sends the ranks' usage errors to rank 0.
_USAGE_SECONDS = 30.0


class Job(Protocol):
    """The result of `prepare` of the trainer, the script runner and bench."""

    @property
    def backend(self) -> str: ...
    @property
    def timeout_seconds(self) -> float: ...
    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Do the work. Returns the exit code. `announce` is a collective to call once the input is valid."""


def prepare(command: str, argv: list[str]) -> Job:
    """Parse and check the command's own arguments. Raises UsageError."""
    if command == "run":
        return script.prepare(argv)
    if command == "bench":
        from entrypoints.bench import arguments

        return arguments.prepare(argv)
    if command == "generate":
        from entrypoints.generate import command as generate

        return generate.prepare(argv)
    from entrypoints.train import main as train  # imports transformers: seconds

    return train.prepare(argv)


def work(command: str, argv: list[str], environment: DistributedEnvironment, preloaded: list[str]) -> int:
    """Run one rank to its end. Returns the exit code; raises what the job raises.

    `preloaded`: the paths that the plan added to LD_PRELOAD.
    """
    job: Job | None = None
    problem: UsageError | None = None
    measured = None
    try:
        job = prepare(command, argv)
        measured = attention_rule.read(os.environ.get(contract.ATTENTION))
        check_backend(job.backend)
    except UsageError as error:
        job, problem = None, error
    if environment.world_size == 1 and problem:
        raise problem
    # A rank with an error joins the other ranks' group too, so that rank 0 can print the error.
    backend, timeout = (
        (job.backend, job.timeout_seconds) if job else (_backend_of_other_ranks(command, argv), _USAGE_SECONDS)
    )
    with initialize(environment, backend, timeout):
        # Nodes may see different files: rank 0 prints the errors of all ranks, and all ranks exit together.
        agree(str(problem) if problem else None)
        if job is None:
            raise AssertionError("agree returned in spite of this rank's error")
        bf16 = cpus.bf16_of(os.environ)
        install_operators(bf16, measured)
        return job.run(environment, partial(banner.show, environment, preloaded, bf16))


def install_operators(bf16: str, measured: attention_rule.Measured | None = None) -> None:
    """Replace torch's operators with the image's in this process. For the arguments, see attention.install."""
    widened = bf16_products.needed(bf16)
    if widened:
        bf16_products.install()
    if library.wanted(contract.DROPOUT_KERNEL):
        dropout.install()
    if library.wanted(contract.ATTENTION_KERNEL):
        attention.install(bf16, widened, measured)


def _backend_of_other_ranks(command: str, argv: list[str]) -> str:
    """The backend of the ranks without an error: this rank joins their group to report its own error."""
    try:
        if command == "bench":
            from entrypoints.bench import arguments

            return arguments.parse(argv).backend
        return check_backend(start.backend_of([command, *argv]))
    except UsageError:  # the other ranks have this error too
        return default_backend()


def main() -> NoReturn:
    _buffer_lines()
    environment, preloaded = start.read_exported(os.environ)
    for warning in preload.verify(preloaded):
        say(f"warning: rank {environment.rank}: {warning}")
    command, *argv = sys.argv[1:]
    why = ""
    try:
        code = work(command, argv, environment, preloaded)
    except UsageError as error:
        code, why = report_usage_error(error), str(error)
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            why = f"exit code {code}"
            record(error)
    except BaseException as error:  # noqa: BLE001 - every exception of the job ends the rank here
        tracebacks.report(error, environment, MEETING[0] if MEETING else None, is_script=command == "run")
        code = contract.INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1
        why = f"{type(error).__name__}: {one_line(error)}"
    is_stopped = code == contract.INTERRUPTED_EXIT_CODE
    _finish_records("stop" if is_stopped else "failure" if code else "end", "SIGINT" if is_stopped else why)
    if code:
        exit_failed(code)
    exit_finished()


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
    main()
