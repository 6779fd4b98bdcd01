"""One rank's work, after the exec: verify the preloads, make the process group, run the trainer or the script.

Started by `entrypoints.rank.start` only, with its variables set.
"""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from typing import NoReturn, Protocol

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.group import banner
from entrypoints.group.backends import check_backend
from entrypoints.group.banner import Announce
from entrypoints.group.create import DEFAULT_BACKEND, MEETING, agree, initialize
from entrypoints.machine import cpus
from entrypoints.operators import attention, bf16_products, dropout, library
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.plan import preload
from entrypoints.rank import exit as failure
from entrypoints.rank import last_words, script, start

# For the group that only carries the ranks' usage errors to rank 0.
_USAGE_SECONDS = 30.0


class Job(Protocol):
    """What `prepare` of the trainer, of the script runner and of bench return."""

    @property
    def backend(self) -> str: ...
    @property
    def timeout_seconds(self) -> float: ...
    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Do the work. `announce`: to call on every rank once its input is known to be good, or not at all."""


def prepare(command: str, argv: list[str]) -> Job:
    """Parse the command's own arguments. Raises UsageError; starts nothing."""
    if command == "run":
        return script.prepare(argv)
    if command == "bench":
        from entrypoints.bench import arguments

        return arguments.prepare(argv)
    from entrypoints.train import main as train  # imports transformers: seconds

    return train.prepare(argv)


def work(command: str, argv: list[str], environment: DistributedEnvironment, preloaded: list[str]) -> int:
    """Run one rank to its end. Returns the exit code; raises what the job raises. `preloaded`: as `take_back`."""
    job: Job | None = None
    problem: UsageError | None = None
    try:
        job = prepare(command, argv)
        check_backend(job.backend)
    except UsageError as error:
        job, problem = None, error
    if environment.world_size == 1 and problem:
        raise problem
    backend, timeout = (
        (job.backend, job.timeout_seconds) if job else (_others_backend(command, argv), _USAGE_SECONDS)
    )
    with initialize(environment, backend, timeout):
        # Not every node sees the same files: rank 0 says what is wrong anywhere, and all stop together.
        agree(str(problem) if problem else None)
        if job is None:
            raise AssertionError("agree returned in spite of this rank's error")
        bf16 = cpus.bf16_of(os.environ)
        widened = bf16_products.needed(bf16)
        if widened:
            bf16_products.install()
        if library.wanted(contract.DROPOUT_KERNEL):
            dropout.install()
        if library.wanted(contract.ATTENTION_KERNEL):
            attention.install(bf16, widened)
        return job.run(environment, partial(banner.show, environment, preloaded, bf16))


def _others_backend(command: str, argv: list[str]) -> str:
    """The group of the ranks that can go on, which this one has to join to say that it cannot."""
    try:
        return check_backend(start.named_backend([command, *argv]) or DEFAULT_BACKEND)
    except UsageError:  # which is the others' error too
        return DEFAULT_BACKEND


def main() -> NoReturn:
    _whole_lines()
    environment, preloaded = start.take_back(os.environ)
    for warning in preload.verify(preloaded):
        print(f"warning: rank {environment.rank}: {warning}", file=sys.stderr, flush=True)
    command, *argv = sys.argv[1:]
    try:
        code = work(command, argv, environment, preloaded)
    except UsageError as error:
        code = failure.usage(error)
    except SystemExit as error:
        code = _exit_code(error)
        if code:
            failure.record(error)
    except BaseException as error:  # noqa: BLE001 - a rank ends here, whatever its job raised
        last_words.say(error, environment, MEETING[0] if MEETING else None, is_script=command == "run")
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    if code:
        failure.leave(code)
    failure.finish()


def _whole_lines() -> None:
    """Write each line at once: unbuffered, print writes its line's end by itself, between other ranks' lines."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _exit_code(error: SystemExit) -> int:
    """What the interpreter makes of sys.exit's argument: None is success, a text is printed and 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    main()
