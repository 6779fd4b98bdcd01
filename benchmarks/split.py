"""Where the time of a step goes, from the profiler's events of one rank. Pure.

Each moment of the thread that computes belongs to the innermost operator that runs then, and so to one class:

    products        products of matrices, attention kernels among them
    memory          elementwise operators, copies, sums, normalization, look-ups: bound by memory
    random          dropout, with the numbers that it draws
    optimizer       the optimizer's step, clipping of gradients
    communication   collectives on this thread, and its idle time while one is under way elsewhere
    other           the rest: Python, loading of data, waiting
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CLASSES = ("products", "memory", "random", "optimizer", "communication", "other")

# The first that matches an operator's name.
_NAMES = (
    ("communication", re.compile(r"^(c10d::|gloo:|ccl:|mpi:|nccl:|record_param_comms)")),
    ("optimizer", re.compile(r"^Optimizer\.|_fused_(adam|sgd|adagrad)|::_foreach_|vector_norm|clip_grad")),
    ("random", re.compile(r"bernoulli|dropout|^Dropout|::rand|uniform|::normal|exponential|multinomial|philox")),
    ("products", re.compile(
        r"(::|_)(mm|addmm|bmm|baddbmm|matmul|linear|gemm|mv|addmv|dot|einsum|convolution)(_|\.|$)|scaled_dot_product"
        r"|IPEXLinear|flash_attention|^FusedAttention(Backward)?$"
    )),
    # Attention is this project's in float32: its products are operators of their own.
    ("memory", re.compile(r"^(aten|torch_ipex|prims)::|^Attention(Backward)?$")),
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """An operator's time, in microseconds. `is_async`: it began on one thread and ended on another."""

    name: str
    start: float
    end: float
    thread: int
    is_async: bool = False


def class_of(name: str) -> str:
    """The class of an operator by its name, "other" for wrappers that compute nothing themselves."""
    return next((found for found, pattern in _NAMES if pattern.search(name)), "other")


def split(events: Sequence[Event], start: float, end: float) -> dict[str, float]:
    """The share of each class in the time from `start` to `end`; the sum is 1."""
    own = [event for event in events if not event.is_async and event.end > start and event.start < end]
    collectives = [
        (event.start, event.end) for event in events if event.is_async and class_of(event.name) == "communication"
    ]
    totals = dict.fromkeys(CLASSES, 0.0)
    covered: list[tuple[float, float]] = []  # by something that computes
    for name, begin, finish in _innermost(_of_busiest_thread(own)):
        begin, finish = max(begin, start), min(finish, end)
        if begin < finish and name != "other":
            totals[name] += finish - begin
            covered.append((begin, finish))
    waiting = _without(_united(collectives, start, end), _united(covered, start, end))
    totals["communication"] += sum(finish - begin for begin, finish in waiting)
    whole = end - start
    totals["other"] = max(0.0, whole - sum(totals.values()))
    return {name: value / whole for name, value in totals.items()}


def _of_busiest_thread(events: Sequence[Event]) -> list[Event]:
    """Its events, parents before their children."""
    times: dict[int, float] = {}
    for event in events:
        times[event.thread] = times.get(event.thread, 0.0) + event.end - event.start
    busiest = max(times, key=lambda thread: times[thread], default=None)
    return sorted(
        (event for event in events if event.thread == busiest), key=lambda event: (event.start, -event.end)
    )


def _innermost(events: Iterable[Event]) -> list[tuple[str, float, float]]:
    """The class and the times during which no child ran, of nested events in the order of their start."""
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
    """All that an optimizer calls is the optimizer's, and all that draws random numbers is random."""
    return outer if outer in ("optimizer", "random") else class_of(name)


def _united(spans: Iterable[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """The spans within `start` and `end` without overlaps, by start."""
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
    spans: Sequence[tuple[float, float]], taken: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What of united `spans` lies in no span of united `taken`."""
    result = []
    for begin, finish in spans:
        for low, high in taken:
            if high <= begin or low >= finish:
                continue
            if low > begin:
                result.append((begin, low))
            begin = max(begin, high)
        if begin < finish:
            result.append((begin, finish))
    return result
