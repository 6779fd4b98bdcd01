"""Several runs on one page: curves over each other, numbers side by side, and what differs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.page import render
from cpu_train_stack.page.blocks import Block, Chart, Curve, Page, Section, Table
from cpu_train_stack.page.texts import NOTHING, duration, number
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.report import curves, folder, machine, scaling, series, summary
from cpu_train_stack.report.scaling import Forecast
from cpu_train_stack.report.series import Interval, Point
from cpu_train_stack.report.summary import Summary

NAME = "compare.html"
_FEWEST, _MOST = 2, 8
_LONGEST_TITLE = 80
_ENDS = {"finished": "finished", "failed": "failed", "stopped": "stopped", "open": "not recorded"}


@dataclass(frozen=True)
class Run:
    """One of the jobs. `name`: the shortest end of the path that the others do not have. `result`: result.json."""

    name: str
    job: RecordedJob
    result: Mapping[str, Any]
    summary: Summary
    intervals: Sequence[Interval]
    forecast: Sequence[Forecast]


def write(folders: Sequence[Path], file: Path) -> Path:
    """Compare the jobs in these folders on one page, and write it to `file`. Raises UsageError."""
    if not _FEWEST <= len(folders) <= _MOST:
        found = count(len(folders), "folder")
        raise UsageError(
            f"found {found} to compare, expected {_FEWEST} to {_MOST}: name the output folders of the jobs"
        )
    return render.save(document([_read(path, name) for path, name in zip(folders, names(folders))]), file)


def names(folders: Sequence[Path]) -> list[str]:
    """The ends of the paths that tell the folders apart: runs/a/out and runs/b/out are a/out and b/out."""
    paths = [Path(os.path.abspath(folder)).parts for folder in folders]  # noqa: PTH100 - keeps symbolic links
    for length in range(1, max(map(len, paths)) + 1):
        found = ["/".join(path[-length:]) for path in paths]
        if len({*found}) == len(found):
            return found
    raise UsageError(f"'{folders[0]}' is named twice: expected different folders; name each job once")


def document(runs: Sequence[Run]) -> Page:
    """The page that compares the runs."""
    settings = {run.name: machine.settings(run.job) for run in runs}
    places = {run.name: _places(run.job) for run in runs}
    sections = [
        Section("numbers", "Results", [_results(runs)]),
        Section("curves", "Curves", _charts(runs), axis=True),
        Section("scaling", "Scaling", _scaling(runs)),
        Section("machine", "Software and machine", differences("Software and machine", places)),
        Section("configuration", "Configuration", differences("Configuration", settings)),
    ]
    names = " and ".join([", ".join(run.name for run in runs[:-1]), runs[-1].name])
    title = f"Comparison of {names if len(names) < _LONGEST_TITLE else f'{len(runs)} jobs'}"
    return Page(
        title=title,
        state="",
        verdict=title,
        about="",
        sections=[section for section in sections if section.blocks],
    )


def differences(title: str, values: Mapping[str, Mapping[str, str]]) -> list[Block]:
    """The rows that differ, and, folded, those that are the same. `values`: by run and name."""
    keys = sorted({key for own in values.values() for key in own})
    rows = [[key, *(own.get(key, NOTHING) for own in values.values())] for key in keys]
    different = [row for row in rows if len({*row[1:]}) > 1]
    same = [row[:2] for row in rows if len({*row[1:]}) == 1]
    found: list[Block] = []
    if different:
        found.append(Table(f"{title}: {len(different)} different", ["", *values], different, even=True))
    if same:
        found.append(Table(f"{title}: {len(same)} the same", ["", "all runs"], same, folded=True))
    return found


def _read(path: Path, name: str) -> Run:
    job = folder.read(path)
    result = folder.read_result(job)
    steps = {number: rank.steps for number, rank in job.ranks.items() if rank.steps}
    return Run(name, job, result, summary.of(job, result), series.intervals(steps), scaling.read(path))


def _places(job: RecordedJob) -> dict[str, str]:
    """Facts, versions one by one, and the command."""
    found = machine.facts(job)
    found.pop("versions")
    start = job.first.start
    found.update(start.versions)
    found["command"] = machine.command(start) if start.command else NOTHING
    return {name: value for name, value in found.items() if value != NOTHING}


def _results(runs: Sequence[Run]) -> Table:
    """One row for each number, one column for each run."""
    lines: dict[str, Callable[[Run], str]] = {
        "end": lambda run: _ENDS[run.summary.state],
        "duration": lambda run: duration(run.summary.seconds),
        "steps": lambda run: f"{run.summary.steps:,}",
        "training loss": lambda run: number(run.summary.loss),
        "samples/s": lambda run: number(run.summary.samples),
        "useful tokens/s": lambda run: number(run.summary.tokens),
    }
    rows = [[name, *(line(run) for run in runs)] for name, line in lines.items()]
    metrics = [{**summary.metrics(run.job), **_final(run.result)} for run in runs]
    for name in dict.fromkeys(name for found in metrics for name in found):
        rows.append([f"evaluation: {curves.title(name)}", *(number(found.get(name)) for found in metrics)])
    shown = [row for row in rows if {*row[1:]} != {NOTHING}]
    return Table("", ["", *(run.name for run in runs)], shown, range(1, len(runs) + 1), even=True)


def _final(result: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of the final weights."""
    found = result.get("metrics")
    items = found.items() if isinstance(found, dict) else ()
    numbers = {name: summary.finite(value) for name, value in items if summary.is_metric(name)}
    return {name: value for name, value in numbers.items() if value is not None}


def _charts(runs: Sequence[Run]) -> list[Block]:
    """The charts of the runs' own pages, with one curve for each run, and the step time."""
    charts: dict[str, Chart] = {}
    lines: dict[str, list[Curve]] = {}
    for place, run in enumerate(runs):
        for chart in (*curves.learning(run.job), *curves.speed(run.job, run.intervals), _step_time(run)):
            for curve in chart.curves[:1]:  # of the loss, what Trainer logged; without that, of each step
                look = "line" if curve.look == "thin" else curve.look
                charts.setdefault(chart.title, chart)
                lines.setdefault(chart.title, []).append(replace(curve, label=run.name, color=place, look=look))
    return [replace(chart, curves=lines[title]) for title, chart in charts.items()]


def _scaling(runs: Sequence[Run]) -> list[Block]:
    """The forecast of the first run that has one."""
    jobs = [one for run in runs for one in scaling.measured(run.name, run.job, run.summary.samples)]
    return scaling.blocks(jobs, next((run.forecast for run in runs if run.forecast), []))


def _step_time(run: Run) -> Chart:
    points = [Point(one.step, one.time, one.seconds) for one in run.intervals]
    lines = curves.curves("step time", points, summary.began(run.job))
    return Chart("Step time", "seconds per step", lines, from_zero=True)
