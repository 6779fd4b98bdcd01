"""What slows a job down on all ranks, and what will end it: from the records of its steps. Pure.

`stragglers` compares the ranks with each other; a cause that all of them share makes no rank the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from cpu_train_stack.page.texts import gibibytes
from cpu_train_stack.records import stragglers
from cpu_train_stack.records.job import Rank, RecordedJob
from cpu_train_stack.records.stragglers import LEAST_STEPS, StepShare

# Shares of a step, of the rank in the middle.
_LEAST_PAUSED = 0.05
_LEAST_DELAYED = 0.10
_LEAST_NETWORK = 0.30
# Memory that grows from the second quarter of the job's samples to the last one by this factor and this size.
_GROWTH = 1.2
_LEAST_GROWTH = 1 << 29
_LEAST_SAMPLES = 40


class Finding(NamedTuple):
    """`what`: with a figure. `fix`: what to do."""

    what: str
    fix: str

    @property
    def text(self) -> str:
        return f"{self.what[0].upper()}{self.what[1:]}: {self.fix}"


def find(job: RecordedJob, last: int | None = None) -> list[Finding]:
    """`last`: look at the last steps only, except for the memory and the loss."""
    means = [*stragglers.shares(job, last).values()]
    found: list[Finding | None] = [_not_a_number(job.first), *map(_grows, job.ranks.values())]
    if means and means[0].steps >= LEAST_STEPS:
        parts = stragglers.mean_parts(job, last)
        found += _limits(means, parts.network if parts is not None and job.nodes > 1 else 0.0)
    return [one for one in found if one is not None]


def _limits(means: Sequence[StepShare], network: float) -> list[Finding]:
    """`network`: the share of a step that every rank waits for it."""
    seconds = median(one.seconds for one in means) or 1.0
    paused = median(one.throttled for one in means)
    delayed = median(one.delayed for one in means)
    found = []
    if paused >= _LEAST_PAUSED * seconds:
        found.append(
            Finding(
                f"the CPU quota pauses every rank for {paused:.2f} s per step ({paused / seconds:.0%})",
                "raise the quota, or start fewer ranks",
            )
        )
    if delayed >= _LEAST_DELAYED * seconds:
        found.append(
            Finding(
                f"every rank waits {delayed:.2f} s per step ({delayed / seconds:.0%}) for cores on which other "
                "processes run",
                "stop these processes, or give the job cores of its own",
            )
        )
    # A rank without a core also communicates later.
    if network >= _LEAST_NETWORK and not found:
        found.append(
            Finding(
                f"every rank waits for the network for {network:.0%} of a step",
                "use a faster network, fewer nodes, or more rows per step (--gradient_accumulation_steps)",
            )
        )
    return found


def _not_a_number(rank: Rank) -> Finding | None:
    """Only of a rank that had a loss."""
    known = [one.step for one in rank.steps if one.loss is not None]
    if not known or known[-1] == rank.steps[-1].step:
        return None
    return Finding(f"the loss is not a number since step {known[-1] + 1:,}", "lower the learning rate")


def _grows(rank: Rank) -> Finding | None:
    sizes = [one.memory for one in rank.samples]
    if len(sizes) < _LEAST_SAMPLES:
        return None
    quarter = len(sizes) // 4
    before, now = median(sizes[quarter : 2 * quarter]), median(sizes[-quarter:])
    if now < before * _GROWTH or now - before < _LEAST_GROWTH:
        return None
    return Finding(
        f"the memory of rank {rank.start.rank} grows: {gibibytes(before)} GiB, then {gibibytes(now)} GiB",
        "look for tensors that the script keeps from step to step",
    )
