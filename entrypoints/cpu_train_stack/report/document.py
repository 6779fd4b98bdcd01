"""The page of one job, from its records. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.page.blocks import Page, Section, Texts
from cpu_train_stack.page.texts import duration, moment
from cpu_train_stack.records import findings, stragglers
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.stragglers import Straggler
from cpu_train_stack.report import curves, events, machine, ranks, scaling, series, summary
from cpu_train_stack.report.scaling import Forecast
from cpu_train_stack.report.summary import Summary


def document(job: RecordedJob, result: Mapping[str, Any], forecast: Sequence[Forecast], now: float) -> Page:
    """`result`: result.json, empty without one. `forecast`: of plan-cluster, empty without one.

    `now`: when the page is written, in seconds since the epoch.
    """
    found = series.intervals({number: rank.steps for number, rank in job.ranks.items() if rank.steps})
    facts, slow = summary.of(job, result), stragglers.find(job)
    sections = [
        Section("curves", "Curves", curves.blocks(job, found), axis=True),
        Section("steps", "Step time by rank", ranks.steps(job, found, slow)),
        Section("resources", "Memory and CPU by rank", ranks.resources(job)),
        Section("scaling", "Scaling", scaling.blocks(scaling.measured("this job", job, facts.samples), forecast)),
        Section("time-line", "Time line", events.blocks(job)),
        Section("plan", "Plan and checks", machine.plan(job)),
        Section("configuration", "Configuration", machine.configuration(job)),
    ]
    return Page(
        title=f"{name(job)}: training report",
        state=facts.state,
        verdict=facts.verdict,
        about=" · ".join([name(job), f"started {moment(summary.began(job))}", *_last_line(job, facts, now)]),
        tiles=facts.tiles,
        notices=notices(job, slow),
        sections=[
            Section("what-ran", "What ran", machine.what_ran(job)),
            *(section for section in sections if section.blocks),
        ],
    )


def notices(job: RecordedJob, slow: Straggler | None) -> list[Texts]:
    """What a reader should know before the numbers."""
    found = []
    if slow is not None:
        cause = "" if slow.cause == "unknown" else f"; cause: {slow.cause}"
        title = f"Rank {slow.rank} slows the job down{cause}"
        found.append(Texts(title, [slow.text[:1].upper() + slow.text[1:]], "warning"))
    if limits := findings.find(job):
        found.append(Texts("Warnings", [one.text for one in limits], "warning"))
    if again := events.repeated(job):
        found.append(Texts("Restarted", [again], ""))
    if absent := machine.missing(job):
        found.append(Texts("Missing ranks", [absent], ""))
    return found


def _last_line(job: RecordedJob, facts: Summary, now: float) -> list[str]:
    """Of a job without an end: how old the records are, from which a reader sees whether the job runs."""
    if facts.state != "open":
        return []
    return [f"last record {moment(job.time)}, {duration(max(0.0, now - job.time))} before this page was written"]


def name(job: RecordedJob) -> str:
    """The model and the data, if they are known, and the output folder, unless it is the container's only one."""
    model, data, folder = summary.model(job), summary.data(job), job.folder.resolve()
    what = f"{model} on {data}" if model and data else model or data
    return what if what and str(folder) == contract.OUTPUT else f"{what} in {folder.name}".removeprefix(" in ")
