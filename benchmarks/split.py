"""The distribution of a step's time over classes of operators, from the profiler's events of one rank. Pure.

At each moment, the innermost operator on the computing thread determines the class:

    products        matrix products, including attention kernels
    memory          elementwise operators, copies, sums, normalization, look-ups: bound by memory
    random          dropout, including its random numbers
    optimizer       the optimizer's step, gradient clipping
    communication   collectives on this thread, and idle time during a collective on another thread
    other           the rest: Python, data loading, waiting
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CLASSES = ("products", "memory", "random", "optimizer", "communication", "other")

# The first pattern that matches the name of an operator determines its class.
_NAMES = (
    ("communication", re.compile(r"^(c10d::|gloo:|ccl:|mpi:|nccl:|record_param_comms)")),
    ("optimizer", re.compile(r"^Optimizer\.|_fused_(adam|sgd|adagrad)|::_foreach_|vector_norm|clip_grad")),
    ("random", re.compile(r"bernoulli|dropout|^Dropout|::rand|uniform|::normal|exponential|multinomial|philox")),
    ("products", re.compile(
        r"(::|_)(mm|addmm|bmm|baddbmm|matmul|linear|gemm|mv|addmv|dot|einsum|convolution)(_|\.|$)|scaled_dot_product"
        r"|IPEXLinear|flash_attention|^FusedAttention(Backward)?$"
    )),
    # This project's operators; of Attention, which is in float32, the matrix products are separate operators.
    ("memory", re.compile(
        r"^(aten|torch_ipex|prims)::|^(Attention|NormedSum|_Branches|Gelu|Norm|Gate|Rotation|_Add)(Backward)?$"
    )),
)  # fmt: skip


@dataclass(frozen=True)
class ProfiledEvent:
    """The time of an operator, in microseconds. `is_async`: it started on one thread and ended on another."""

    name: str
    start: float
    end: float
    thread: int
    is_async: bool = False


def class_of(name: str) -> str:
    """The class of an operator. "other" for wrappers that only call other operators."""
    return next((kind for kind, pattern in _NAMES if pattern.search(name)), "other")


def split(events: Sequence[ProfiledEvent], start: float, end: float) -> dict[str, float]:
    """The share of each class in the time from `start` to `end`. The sum of all shares is 1."""
    own = [event for event in events if not event.is_async and event.end > start and event.start < end]
    collectives = [
        (event.start, event.end) for event in events if event.is_async and class_of(event.name) == "communication"
    ]
    totals = dict.fromkeys(CLASSES, 0.0)
    covered: list[tuple[float, float]] = []  # times with an operator
    for name, begin, finish in _innermost(_of_busiest_thread(own)):
        begin, finish = max(begin, start), min(finish, end)
        if begin < finish and name != "other":
            totals[name] += finish - begin
            covered.append((begin, finish))
    waiting = _without(_united(collectives, start, end), _united(covered, start, end))
    totals["communication"] += sum(finish - begin for begin, finish in waiting)
    duration = end - start
    totals["other"] = max(0.0, duration - sum(totals.values()))
    return {name: value / duration for name, value in totals.items()}


def _of_busiest_thread(events: Sequence[ProfiledEvent]) -> list[ProfiledEvent]:
    """The events of the busiest thread, parents before their children."""
    times: dict[int, float] = {}
    for event in events:
        times[event.thread] = times.get(event.thread, 0.0) + event.end - event.start
    busiest = max(times, key=lambda thread: times[thread], default=None)
    return sorted(
        (event for event in events if event.thread == busiest), key=lambda event: (event.start, -event.end)
    )


def _innermost(events: Iterable[ProfiledEvent]) -> list[tuple[str, float, float]]:
    """The class, start and end of the times without a running child.

    `events` are nested, in the order of their start.
    """
    pieces: list[tuple[str, float, float]] = []
    stack: list[tuple[str, float]] = []  # class and end of the open events
    now = 0.0

    def close(until: float) -> None:
        nonlocal now
        while stack and stack[-1][1] <= until:
            found, finish = stack.pop()
            if finish > now:
                pieces.append((found, now, finish))
                now = finish

    for event in events:
        close(event.start)
        if stack and event.start > now:
            pieces.append((stack[-1][0], now, event.start))
        now = max(now, event.start)
        outer = stack[-1][0] if stack else None
        stack.append((_within(outer, event.name), event.end if not stack else min(event.end, stack[-1][1])))
    close(float("inf"))
    return pieces


def _within(outer: str | None, name: str) -> str:
    """The class of an operator inside another. Operators inside "optimizer" and "random" have the outer class."""
    return outer if outer in ("optimizer", "random") else class_of(name)


def _united(spans: Iterable[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """The union of the spans between `start` and `end`, sorted, without overlaps."""
    result: list[tuple[float, float]] = []
    for begin, finish in sorted(spans):
        begin, finish = max(begin, start), min(finish, end)
        if begin >= finish:
            continue
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], finish))
        else:
            result.append((begin, finish))
    return result


def _without(
    spans: Sequence[tuple[float, float]], excluded: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The parts of `spans` outside of `excluded`. Both are results of _united()."""
    result = []
    for begin, finish in spans:
        for low, high in excluded:
            if high <= begin or low >= finish:
                continue
            if low > begin:
                result.append((begin, low))
            begin = max(begin, high)
        if begin < finish:
            result.append((begin, finish))
    return result
