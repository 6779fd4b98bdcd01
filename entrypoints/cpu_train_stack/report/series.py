"""Long series as few points, and the steps of all ranks on common points. Pure.

A chart is at most about 1200 pixels wide: more points than MOST are not visible and make the page larger.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

from cpu_train_stack.records.record import Sample, Steps, summed

MOST = 600  # points of a curve


@dataclass(frozen=True)
class Point:
    """`time`: seconds since the epoch."""

    step: int
    time: float
    value: float


@dataclass
class Interval:
    """The steps up to `step`, by rank: a record of the sums."""

    step: int
    ranks: dict[int, Steps] = field(default_factory=dict)

    @property
    def time(self) -> float:
        return max(total.time for total in self.ranks.values())

    @property
    def seconds(self) -> float:
        """Of a step, as the median of the ranks."""
        return median(total.seconds / total.steps for total in self.ranks.values())


def extremes(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """At most `most` points: of each part, the lowest and the highest one, so that peaks stay."""
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    for part in _parts(len(points), most // 2):
        low = min(part, key=lambda place: points[place].value)
        high = max(part, key=lambda place: points[place].value)
        kept.extend(points[place] for place in sorted({low, high}))
    return kept


def intervals(ranks: Mapping[int, Sequence[Steps]]) -> list[Interval]:
    """The steps of all ranks in at most MOST intervals of the same number of steps."""
    ends = _ends(sorted({one.step for steps in ranks.values() for one in steps}), MOST)
    found = [Interval(end) for end in ends]
    for rank, steps in ranks.items():
        for place, part in groupby(steps, key=lambda one: bisect.bisect_left(ends, one.step)):
            found[place].ranks[rank] = summed([*part])
    return [one for one in found if one.ranks]


def mean_losses(ranks: Mapping[int, Sequence[Steps]]) -> list[Point]:
    """The mean over the ranks of the loss of each record."""
    sums: dict[int, tuple[float, int, float]] = {}
    for steps in ranks.values():
        for one in steps:
            if one.loss is not None:
                loss, number, _ = sums.get(one.step, (0.0, 0, 0.0))
                sums[one.step] = (loss + one.loss, number + 1, one.time)
    return [Point(step, time, loss / number) for step, (loss, number, time) in sorted(sums.items())]


def moments(ranks: Mapping[int, Sequence[Sample]]) -> list[tuple[Point, dict[int, Sample]]]:
    """The last sample of each rank in each of at most MOST / 2 intervals of time. The points have no value.

    The intervals have the same number of samples, because no samples are taken while the job does not run.
    """
    longest = max(ranks.values(), key=len, default=())
    begins = [one.time for one in longest[:: -(-len(longest) // (MOST // 2)) or 1]]
    found: dict[int, dict[int, Sample]] = {}
    for rank, samples in ranks.items():
        for one in samples:
            found.setdefault(max(1, bisect.bisect_right(begins, one.time)), {})[rank] = one
    rows = []
    for _, row in sorted(found.items()):
        last = max(row.values(), key=lambda one: one.time)
        rows.append((Point(last.step, last.time, 0.0), row))
    return rows


def chosen(values: Mapping[int, float], names: tuple[str, str], most: int = 8) -> dict[int, str]:
    """The ranks that get a curve: all of up to `most`, otherwise the highest and the lowest, with their labels."""
    if len(values) <= most:
        return {rank: f"rank {rank}" for rank in sorted(values)}
    order = sorted(values, key=lambda rank: values[rank])
    return {rank: f"rank {rank} ({name})" for rank, name in ((order[-1], names[0]), (order[0], names[1]))}


def _ends(steps: Sequence[int], most: int) -> list[int]:
    if len(steps) <= most:
        return list(steps)
    width = -(-(steps[-1] - steps[0] + 1) // most)
    return [*range(steps[0] + width - 1, steps[-1], width), steps[-1]]


def _parts(length: int, number: int) -> Iterable[range]:
    return (range(length * one // number, length * (one + 1) // number) for one in range(number))
