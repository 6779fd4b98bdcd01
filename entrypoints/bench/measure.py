"""Times the backends in turn, in the same processes: what disturbs one disturbs the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import torch.distributed as dist

from entrypoints.bench.calls import Call
from entrypoints.bench.cases import Repetitions, longest, quartiles, repetitions
from entrypoints.bench.ceilings import everyone

_FIRST_CALLS = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: median and quartiles over `blocks` blocks of `calls` calls, of the slowest rank each."""

    low: float
    median: float
    high: float
    calls: int
    blocks: int


def measure(call: Call, groups: Mapping[str, dist.ProcessGroup], row_seconds: float) -> dict[str, Timing]:
    """The timing of each backend that supports the call. A collective; every rank gets the same numbers."""
    groups = {backend: group for backend, group in groups.items() if call.check(group)}
    first = {}
    for backend, group in groups.items():
        first[backend] = [_block(call, group, 1) for _ in range(_FIRST_CALLS)]
    plan = repetitions(
        {backend: median(longest(everyone(times))) for backend, times in first.items()}, row_seconds
    )
    times = _alternate(call, groups, plan)
    result = {}
    for backend in groups:
        low, middle, high = quartiles(longest(everyone(times[backend])))
        result[backend] = Timing(low, middle, high, plan.calls[backend], plan.blocks)
    return result


def _alternate(call: Call, groups: Mapping[str, dist.ProcessGroup], plan: Repetitions) -> dict[str, list[float]]:
    """A B, B A, A B, ...: neither is always the one that comes first."""
    times: dict[str, list[float]] = {backend: [] for backend in groups}
    order = list(groups.items())
    for _ in range(plan.blocks):
        for backend, group in order:
            times[backend].append(_block(call, group, plan.calls[backend]))
        order.reverse()
    return times


def _block(call: Call, group: dist.ProcessGroup, calls: int) -> float:
    """Seconds of one of `calls` calls."""
    dist.barrier(group=group)
    started = time.perf_counter()
    for _ in range(calls):
        call.run(group)
    return (time.perf_counter() - started) / calls
