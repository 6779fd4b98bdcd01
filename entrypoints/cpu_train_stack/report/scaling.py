"""The speed on several nodes, next to the forecast of `./inv plan-cluster`. Pure, except for `read`.

The forecast is the document of `./inv plan-cluster --json`, as forecast.json in the job's output folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json, read_below
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.page.blocks import Block, Chart, Curve, Table
from cpu_train_stack.page.texts import NOTHING, number
from cpu_train_stack.records.job import RecordedJob

FORECAST = "forecast.json"


@dataclass(frozen=True)
class Forecast:
    """A prediction for one number of nodes: samples per second of all ranks, and the 90% interval.

    `batch`: the samples of a step of all ranks.
    """

    nodes: int
    batch: int
    samples: float
    low: float
    high: float


@dataclass(frozen=True)
class MeasuredScaling:
    """A job. `samples`: per second of all ranks. `batch`: 0 if it is not recorded."""

    name: str
    nodes: int
    batch: int
    samples: float


def read(folder: Path) -> list[Forecast]:
    """The forecast in this folder; empty without one. Raises UsageError if it is not valid."""
    path = folder / FORECAST
    try:
        rows = parse_json(read_below(folder, FORECAST))["rows"]
        return sorted((_row(row) for row in rows), key=lambda one: one.nodes)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise UsageError(
            f"'{path}': expected the output of `./inv plan-cluster --json`, found {type(error).__name__}: "
            f"{error}; write it again, or delete it"
        ) from error


def _row(row: Any) -> Forecast:
    speed = row["samples_per_second"]
    ends = (float(speed[name]) for name in ("value", "low", "high"))
    return Forecast(int(row["nodes"]), int(row["global_batch"]), *ends)


def measured(name: str, job: RecordedJob, samples: float | None) -> list[MeasuredScaling]:
    """`samples`: per second of all ranks. Empty if that is unknown."""
    start = job.first.start
    return [MeasuredScaling(name, job.nodes, start.rows_per_step or 0, samples)] if samples else []


def blocks(jobs: Sequence[MeasuredScaling], forecast: Sequence[Forecast]) -> list[Block]:
    """Empty without a forecast, unless the jobs have different numbers of nodes."""
    if not jobs or (not forecast and len({job.nodes for job in jobs}) < 2):
        return []
    nodes = [float(one.nodes) for one in forecast]
    ordered = sorted(jobs, key=lambda job: job.nodes)
    found = [
        Curve("measured", [float(job.nodes) for job in ordered], [], [job.samples for job in ordered], "points")
    ]
    if forecast:
        found += [
            Curve("forecast", nodes, [], [one.samples for one in forecast]),
            Curve("forecast, low", nodes, [], [one.low for one in forecast], "band"),
            Curve("forecast, high", nodes, [], [one.high for one in forecast], "band"),
        ]
    note = "The true value is in the band nine times in ten." if forecast else ""
    chart = Chart("Samples per second of all ranks", "samples/s", found, True, "nodes", note)
    return [chart, _table(ordered, {one.nodes: one for one in forecast})]


def _table(jobs: Sequence[MeasuredScaling], forecast: dict[int, Forecast]) -> Table:
    """The speed-up is relative to the job with the fewest nodes, per node of it."""
    first = jobs[0]
    columns = ["job", "nodes", "samples/s", "speed-up", "forecast", "90% interval", "result"]
    rows = []
    for job in jobs:
        one = forecast.get(job.nodes)
        rows.append(
            [
                job.name,
                str(job.nodes),
                number(job.samples),
                f"{job.samples / first.samples:.2f}x" if job.nodes > first.nodes else NOTHING,
                number(one.samples) if one else NOTHING,
                f"{number(one.low)} to {number(one.high)}" if one else NOTHING,
                _judged(job, one) if one else "no forecast for this number of nodes" if forecast else NOTHING,
            ]
        )
    return Table("Measured and predicted" if forecast else "Measured", columns, rows, right=(1, 2, 3, 4))


def _judged(job: MeasuredScaling, forecast: Forecast) -> str:
    if job.batch and job.batch != forecast.batch:
        return f"not comparable: {count(job.batch, 'row')} in a step, the forecast is for {forecast.batch}"
    if job.samples < forecast.low:
        return f"{1 - job.samples / forecast.samples:.0%} slower than predicted"
    if job.samples > forecast.high:
        return f"{job.samples / forecast.samples - 1:.0%} faster than predicted"
    return "as predicted"
