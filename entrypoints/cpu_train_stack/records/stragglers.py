"""Which rank the others wait for, and why: from the records of their steps. Pure.

In synchronous training every step takes as long as the slowest rank. The time in which a rank does not wait for
others (`Steps.busy`) shows which one that is; its counters show the likely cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import NamedTuple

from cpu_train_stack.cli.printable import one_line
from cpu_train_stack.records.job import Rank, RecordedJob
from cpu_train_stack.records.record import SUMMED, Sample, Steps, summed

# A rank is named if it is slower than the others by this share of a step, in this share of the steps, of at least
# this many. Ranks of a healthy job differ by 1 to 5%.
LEAST_EXCESS = 0.10
LEAST_CONSISTENCY = 0.75
LEAST_STEPS = 10
# A cause is named if it explains this share of the difference. Not measurable in seconds: more remote memory.
_EXPLAINS = 0.25
_MORE_REMOTE = 0.2
FIXES = {
    "quota": "raise the quota, or give every node the same",
    "shared cores": "stop the other processes on this node, or give the rank cores of its own",
    "reading": "check its disk or network drive, or add --dataloader_num_workers 1",
    "longer rows": "do not turn off the adaptation balanced-ranks, or add --group_by_length",
    "clock rate": "check the node's cooling, its power limit and its CPU frequency governor",
    "remote memory": "see `entrypoint plan` for its memory policy, and `entrypoint doctor` for what refuses it",
    "unknown": "compare `entrypoint doctor` on its node and on another node",
}


@dataclass(frozen=True)
class StepShare:
    """What a step of one rank takes: means over some steps, in seconds, rows and tokens.

    `throttled`: how long the CPU quota paused each of its CPUs. `memory`: resident bytes, the last value.
    `processor`: CPU time per second and thread. `delayed`, `clock`, `remote`: the medians of Sample's.
    """

    rank: int
    steps: int
    seconds: float
    forward: float
    backward: float
    wait: float
    read: float
    optimizer: float
    rows: float
    computed: float
    useful: float
    throttled: float = 0.0
    delayed: float = 0.0
    processor: float = 0.0
    memory: int = 0
    clock: float | None = None
    remote: float | None = None

    @property
    def busy(self) -> float:
        return self.seconds - self.wait

    @property
    def computing(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Straggler:
    """The slowest rank. `excess`: seconds per step more than the others (their median); `share`: of a step.

    `cause`: a key of FIXES. `why`: what was measured. `fix`: what to do.
    """

    rank: int
    node_rank: int
    host: str
    excess: float
    share: float
    cause: str
    why: str
    fix: str

    @property
    def headline(self) -> str:
        return (
            f"rank {self.rank} (node {self.node_rank}, {self.host}) is slower than the others by "
            f"{self.excess:.2f} s per step ({self.share:.0%}): {self.cause}"
        )

    @property
    def text(self) -> str:
        return f"{self.headline}: {self.why}; {self.fix}"


def shares(job: RecordedJob, last: int | None = None) -> dict[int, StepShare]:
    """The means of each rank that has steps: over the `last` steps, or over all but the first few."""
    return {number: found for number, rank in sorted(job.ranks.items()) if (found := share_of(rank, last))}


def share_of(rank: Rank, last: int | None = None) -> StepShare | None:
    steps = window(rank, last)
    if not steps:
        return None
    total = summed(steps)
    means = {name: getattr(total, name) / total.steps for name in SUMMED}
    begin = steps[0].time - steps[0].seconds
    before = [one for one in rank.samples if one.time <= begin]
    samples = [*before[-1:], *(one for one in rank.samples if begin < one.time)]
    cpus = max(1, rank.start.threads * rank.start.local_world_size)
    return StepShare(
        rank.start.rank,
        total.steps,
        **means,
        throttled=_rate(rank, samples, "throttled") * means["seconds"] / cpus,
        delayed=median_of_known([one.delayed for one in samples]) or 0.0,
        processor=_rate(rank, samples, "processor") / max(1, rank.start.threads),
        memory=samples[-1].memory if samples else 0,
        clock=median_of_known([one.clock for one in samples]),
        remote=median_of_known([one.remote for one in samples]),
    )


class Parts(NamedTuple):
    """Shares of a step, over all ranks. `network`: of `waiting`, what even the slowest rank of each step waits."""

    computing: float
    reading: float
    waiting: float
    network: float


def mean_parts(job: RecordedJob, last: int | None = None) -> Parts | None:
    """Over the same steps as `shares`; None without steps."""
    found = [*shares(job, last).values()]
    seconds = sum(one.seconds for one in found)
    if not seconds:
        return None
    rows = [[*row.values()] for row in _aligned(job, last)]
    least = sum(min(one.wait for one in row) for row in rows)
    reading, waiting = sum(one.read for one in found) / seconds, sum(one.wait for one in found) / seconds
    return Parts(1 - reading - waiting, reading, waiting, least / (sum(row[0].seconds for row in rows) or 1.0))


def window(rank: Rank, last: int | None) -> Sequence[Steps]:
    """The records of the `last` steps; without `last`, all but those of the first steps after each start."""
    steps = rank.steps
    if last is None:
        return [one for one in steps if not rank.is_warm_up(one)] or steps
    begin = len(steps)
    while begin and last > 0:
        begin -= 1
        last -= steps[begin].steps
    return steps[begin:]


def find(job: RecordedJob, last: int | None = None) -> Straggler | None:
    """The rank that the others wait for, None if there is none. `last`: look at the last steps only."""
    means = shares(job, last)
    rows = _aligned(job, last)
    if len(means) < 2 or sum(next(iter(row.values())).steps for row in rows) < LEAST_STEPS:
        return None
    slowest = max(means, key=lambda rank: median(row[rank].busy / row[rank].steps for row in rows))
    differences = [
        row[slowest].busy / row[slowest].steps
        - median(one.busy / one.steps for rank, one in row.items() if rank != slowest)
        for row in rows
    ]
    excess = median(differences)
    seconds = median(row[slowest].seconds / row[slowest].steps for row in rows)
    share = excess / seconds if seconds else 0.0
    consistency = sum(difference > 0 for difference in differences) / len(differences)
    if share < LEAST_EXCESS or consistency < LEAST_CONSISTENCY:
        return None
    start = job.ranks[slowest].start
    others = [one for rank, one in means.items() if rank != slowest]
    cause, why, fix = explain(means[slowest], others, excess)
    return Straggler(slowest, start.node_rank, one_line(start.host), excess, share, cause, why, fix)


def explain(slow: StepShare, others: Sequence[StepShare], excess: float) -> tuple[str, str, str]:
    """Cause, evidence and fix for a rank that is `excess` seconds per step slower than the others (medians).

    Each cause's part of the difference is estimated in seconds per step. The largest part is named.
    """

    def usual(name: str) -> float:
        return float(median(getattr(one, name) for one in others))

    computing, tokens, delayed = usual("computing"), usual("computed"), usual("delayed")
    # A rank that has more to compute is also delayed for longer.
    work = _ratio(
        max(0.0, slow.computing - slow.delayed - slow.throttled),
        max(0.0, computing - delayed - usual("throttled")),
    )
    clock, remote = _known(others, "clock"), _known(others, "remote")
    parts = {
        "quota": slow.throttled - usual("throttled"),
        "shared cores": slow.delayed - delayed * work,
        "reading": slow.read - usual("read"),
        "longer rows": computing * (_ratio(slow.computed, tokens) - 1),
        "clock rate": slow.computing * (1 - slow.clock / clock) if slow.clock and clock else 0.0,
    }
    cause = max(parts, key=lambda name: parts[name])
    if parts[cause] < _EXPLAINS * excess:
        is_remote = slow.remote is not None and remote is not None and slow.remote - remote >= _MORE_REMOTE
        cause = "remote memory" if is_remote else "unknown"
    why = {
        "quota": f"its container's CPU quota pauses it for {slow.throttled:.2f} s per step",
        "shared cores": f"its threads wait {slow.delayed:.2f} s per step for cores on which other processes run",
        "reading": f"it reads rows for {slow.read:.2f} s per step, the others for {usual('read'):.2f} s",
        "longer rows": f"it computes {slow.computed:,.0f} tokens per step, the others {tokens:,.0f}",
        "clock rate": f"its cores run at {slow.clock or 0:,.0f} MHz, the others at {clock or 0:,.0f} MHz",
        "remote memory": f"{slow.remote or 0:.0%} of its memory is on other NUMA nodes, not {remote or 0:.0%}",
        "unknown": f"forward and backward take {slow.computing:.2f} s, on the others {computing:.2f} s",
    }
    return cause, why[cause], FIXES[cause]


def _aligned(job: RecordedJob, last: int | None) -> list[dict[int, Steps]]:
    """For each step that all ranks have recorded, the record of each rank."""
    by_rank = {
        number: {one.step: one for one in window(rank, last)} for number, rank in job.ranks.items() if rank.steps
    }
    if not by_rank:
        return []
    common = set.intersection(*(set(steps) for steps in by_rank.values()))
    return [{rank: steps[step] for rank, steps in by_rank.items()} for step in sorted(common)]


def _rate(rank: Rank, samples: Sequence[Sample], name: str) -> float:
    """How fast a counter grows, per second in which the job ran."""
    growth = seconds = 0.0
    for _, found in groupby(samples, key=rank.start_of):
        run = [*found]
        growth += getattr(run[-1], name) - getattr(run[0], name)
        seconds += run[-1].time - run[0].time
    return growth / seconds if seconds > 0 else 0.0


def median_of_known(values: Iterable[float | None]) -> float | None:
    """The median of the values that are known, None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _known(others: Sequence[StepShare], name: str) -> float | None:
    return median_of_known([getattr(one, name) for one in others])


def _ratio(one: float, other: float) -> float:
    return one / other if other else 1.0
