"""Step time and memory by rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from cpu_train_stack.machine.cpus import format_cpu_list
from cpu_train_stack.page.blocks import Bar, Bars, Block, Chart, Curve, Table
from cpu_train_stack.page.texts import GIBIBYTE, gibibytes
from cpu_train_stack.records import stragglers
from cpu_train_stack.records.counters import grown
from cpu_train_stack.records.job import Rank, RecordedJob
from cpu_train_stack.records.record import Sample
from cpu_train_stack.records.stragglers import StepShare, Straggler, median_of_known
from cpu_train_stack.report import series, summary
from cpu_train_stack.report.series import Interval

PARTS = ("forward", "backward", "optimizer", "reading", "waiting")
# More bars than this are not readable: then the ranks that do most and least are shown.
_MOST_BARS = 64
_MOST_ROWS = 100
# Shorter pauses are normal: by the quota in seconds over the job, by other processes as a share of a step.
_LEAST_PAUSE = 1.0
_LEAST_DELAY = 0.01


class _Optional(NamedTuple):
    """A column of the table that is shown if a rank has a value. `field`: of Share. `style`: of the number."""

    name: str
    field: str
    style: str


_OPTIONAL = (
    _Optional("CPU use", "processor", ".0%"),
    _Optional("throttled, s", "throttled", ".3f"),
    _Optional("delayed, s", "delayed", ".3f"),
    _Optional("clock, MHz", "clock", ",.0f"),
    _Optional("remote memory", "remote", ".0%"),
)


def steps(job: RecordedJob, found: Sequence[Interval], slow: Straggler | None) -> list[Block]:
    """The parts of a step as bars and as a table, and the step time over steps."""
    means = stragglers.shares(job)
    if not means:
        return []
    order = sorted(means, key=lambda rank: -means[rank].busy)
    shown, note, half = sorted(means), "", _MOST_BARS // 2
    if len(means) > _MOST_BARS:
        shown, note = [*order[:half], *order[-half:]], f"the {half} busiest and the {half} least busy ranks"
    marks = {slow.rank: "slowest"} if slow is not None else {}
    bars = [Bar(f"rank {rank}", _parts(means[rank]), means[rank].seconds, marks.get(rank, "")) for rank in shown]
    return [
        Bars("Mean step by rank", "seconds per step", PARTS, bars, "; ".join(filter(None, (note, _mean(job))))),
        _table(means, order),
        *_over_steps(job, found, {rank: share.busy for rank, share in means.items()}),
    ]


def resources(job: RecordedJob) -> list[Block]:
    """Memory, CPU use, and the time for which the quota or other processes stopped a rank, over time."""
    ranks = {number: rank.samples for number, rank in job.ranks.items() if rank.samples}
    rows = series.moments(ranks)
    sizes = {rank: _by_time(found, [one.memory / GIBIBYTE for one in found]) for rank, found in ranks.items()}
    used = {rank: _by_time(found, _cpus(job.ranks[rank])) for rank, found in ranks.items()}
    charts = [
        _over_time(job, rows, "Memory", "GiB", sizes, _last(sizes)),
        _over_time(job, rows, "CPU use", "CPUs", used, _last(used)),
    ]
    pauses = {rank: _by_time(found, grown(one.throttled for one in found)) for rank, found in ranks.items()}
    if max(_last(pauses).values(), default=0.0) >= _LEAST_PAUSE:
        title = "Paused by the CPU quota"
        charts.append(_over_time(job, rows, title, "seconds of all CPUs, in total", pauses, _last(pauses)))
    delays = {rank: _by_time(found, [one.delayed for one in found]) for rank, found in ranks.items()}
    means = stragglers.shares(job)
    if any(one.delayed >= _LEAST_DELAY * one.seconds > 0 for one in means.values()):
        title = "Ready to run while the core ran something else"
        order = {rank: means[rank].delayed for rank in delays if rank in means}
        charts.append(_over_time(job, rows, title, "seconds per step", delays, order))
    return [chart for chart in charts if chart.curves]


def _cpus(rank: Rank) -> list[float | None]:
    """The CPU time of each second, between each sample and the one before; None at a start."""
    found: list[float | None] = []
    for _, samples in groupby(rank.samples, key=rank.start_of):
        run = [*samples]
        pairs = ((one.processor - before.processor, one.time - before.time) for before, one in zip(run, run[1:]))
        found += [None, *(used / seconds if seconds > 0 else None for used, seconds in pairs)]
    return found


def _by_time(samples: Sequence[Sample], values: Sequence[float | None]) -> dict[float, float | None]:
    return dict(zip((one.time for one in samples), values))


def _last(values: Mapping[int, Mapping[float, float | None]]) -> dict[int, float]:
    """The last value of each rank."""
    return {rank: [*found.values()][-1] or 0.0 for rank, found in values.items()}


def _over_time(
    job: RecordedJob,
    rows: Sequence[tuple[series.Point, Mapping[int, Sample]]],
    title: str,
    unit: str,
    values: Mapping[int, Mapping[float, float | None]],
    order: Mapping[int, float],
) -> Chart:
    """`values`: of each rank, by the time of its samples. `order`: the highest and lowest rank have a curve."""
    found = [{rank: values[rank][one.time] for rank, one in row.items()} for _, row in rows]
    lines = _lines(job, [point for point, _ in rows], found, series.chosen(order, ("highest", "lowest")))
    return Chart(title, unit, lines, from_zero=True, axis="time")


def _lines(
    job: RecordedJob,
    points: Sequence[series.Point | Interval],
    rows: Sequence[Mapping[int, float | None]],
    named: Mapping[int, str],
) -> list[Curve]:
    """A curve for each of `named`, and the median of the ranks if some have none. `rows`: values by rank."""
    begin = summary.began(job)
    steps = [point.step for point in points]
    seconds = [round(max(0.0, point.time - begin), 1) for point in points]
    found = [Curve(label, steps, seconds, [row.get(rank) for row in rows]) for rank, label in named.items()]
    if any(rank not in named for row in rows for rank in row):
        found.insert(
            1, Curve("median of the ranks", steps, seconds, [median_of_known(row.values()) for row in rows])
        )
    return found


def _over_steps(job: RecordedJob, found: Sequence[Interval], busy: Mapping[int, float]) -> list[Chart]:
    """Of many ranks, the slowest, the median and the fastest."""
    rows = [{rank: total.busy / total.steps for rank, total in one.ranks.items()} for one in found]
    curves = _lines(job, found, rows, series.chosen(busy, ("slowest", "fastest")))
    if len(busy) > 1:
        totals = [one.seconds for one in found]
        curves.append(Curve("the step, with waiting", curves[0].steps, curves[0].seconds, totals, "thin"))
    note = "reading and computing, without waiting for other ranks" if len(busy) > 1 else ""
    return [Chart("Step time over steps", "seconds per step", curves, from_zero=True, note=note)]


def _mean(job: RecordedJob) -> str:
    """The parts of a step."""
    mean = stragglers.mean_parts(job)
    if mean is None:
        return ""
    text = f"{mean.computing:.0%} computing, {mean.reading:.0%} reading"
    waiting = f", {mean.waiting:.0%} waiting, of which {mean.network:.0%} for the network"
    return text + waiting if len(job.ranks) > 1 else text


def _parts(share: StepShare) -> list[float]:
    return [share.forward, share.backward, share.optimizer, share.read, share.wait]


def _table(means: Mapping[int, StepShare], order: Sequence[int]) -> Table:
    """One row for each rank; of many, the busiest."""
    present = [one for one in _OPTIONAL if any(getattr(share, one.field) for share in means.values())]
    more = [one.name for one in present]
    columns = ["rank", "steps", "step, s", *(f"{part}, s" for part in PARTS), *more, "memory, GiB"]
    shown = sorted(order[:_MOST_ROWS])
    rows = [
        [
            str(rank),
            f"{one.steps:,}",
            f"{one.seconds:.3f}",
            *(f"{value:.3f}" for value in _parts(one)),
            *(_optional(extra, getattr(one, extra.field)) for extra in present),
            gibibytes(one.memory),
        ]
        for rank, one in ((rank, means[rank]) for rank in shown)
    ]
    note = "" if len(order) <= _MOST_ROWS else f"the {_MOST_ROWS} busiest of {len(order)} ranks"
    return Table("Step time and memory of each rank", columns, rows, range(len(columns)), folded=True, note=note)


def _optional(column: _Optional, value: float | None) -> str:
    return "" if value is None else format(value, column.style)


def places(job: RecordedJob) -> Table:
    """Where each rank ran."""
    rows = [
        [
            str(rank),
            str(found.start.node_rank),
            found.start.host,
            format_cpu_list(found.start.cores),
            str(found.start.threads or ""),
        ]
        for rank, found in sorted(job.ranks.items())
    ]
    note = "" if len(rows) <= _MOST_ROWS else f"the first {_MOST_ROWS} of {len(rows)} ranks"
    columns = ["rank", "node", "host", "CPUs", "threads"]
    return Table("CPUs of each rank", columns, rows[:_MOST_ROWS], (0, 1, 4), folded=True, note=note)
