"""One rank's job: create the process group, install the image's operators, run the trainer or the script."""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import Protocol

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import MeetingError, UsageError
from cpu_train_stack.cli.options import default_backend
from cpu_train_stack.group import banner
from cpu_train_stack.group.backends import check_backend
from cpu_train_stack.group.banner import Announce
from cpu_train_stack.group.create import agree, initialize
from cpu_train_stack.machine import cpus
from cpu_train_stack.operators import attention, attention_rule, bf16_products, dropout, library
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.rank import script, start

# The timeout of a group that only sends the ranks' usage errors to rank 0.
_USAGE_SECONDS = 30.0


class RankJob(Protocol):
    """The result of `prepare` of the trainer, the script runner and bench."""

    @property
    def backend(self) -> str: ...
    @property
    def timeout_seconds(self) -> float: ...
    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Do the work. Returns the exit code. `announce` is a collective to call once the input is valid."""


def prepare(command: str, argv: list[str]) -> RankJob:
    """Parse and check the command's own arguments. Raises UsageError."""
    if command == "run":
        return script.prepare(argv)
    if command == "bench":
        from cpu_train_stack.bench import arguments

        return arguments.prepare(argv)
    if command == "generate":
        from cpu_train_stack.generate import command as generate

        return generate.prepare(argv)
    from cpu_train_stack.train import main as train  # imports transformers: seconds

    return train.prepare(argv)


def work(command: str, argv: list[str], environment: DistributedEnvironment, preloaded: list[str]) -> int:
    """Run one rank to its end. Returns the exit code; raises what the job raises.

    `preloaded`: the paths that the plan added to LD_PRELOAD.
    """
    job: RankJob | None = None
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
    try:
        is_plain = isinstance(job, script.Script) and job.is_plain(environment)
        with initialize(environment, backend, timeout, when_needed=is_plain):
            # Nodes may see different files: rank 0 prints the errors of all ranks, and all ranks exit together.
            agree(str(problem) if problem else None)
            if job is None:
                raise AssertionError("agree returned in spite of this rank's error")
            bf16 = cpus.bf16_of(os.environ)
            install_operators(bf16, measured)
            gc.freeze()  # what is imported stays: later collections skip it
            gc.enable()  # off since the worker began
            return job.run(environment, partial(banner.show, environment, preloaded, bf16))
    except MeetingError:
        if problem:  # the cause: the other ranks may need longer to start than this rank waits
            raise problem from None
        raise


def install_operators(bf16: str, measured: attention_rule.MeasuredAttention | None = None) -> None:
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
            from cpu_train_stack.bench import arguments

            return arguments.parse(argv).backend
        return check_backend(start.backend_of([command, *argv]))
    except UsageError:  # the other ranks have this error too
        return default_backend()
