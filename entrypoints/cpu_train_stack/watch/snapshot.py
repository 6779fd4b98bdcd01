"""What `watch` shows of a job at one moment. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from cpu_train_stack.cli.numbers import count
from cpu_train_stack.cli.printable import one_line
from cpu_train_stack.records import findings, stragglers
from cpu_train_stack.records.findings import Finding
from cpu_train_stack.records.job import ENDS, RecordedJob
from cpu_train_stack.records.record import Event, Steps
from cpu_train_stack.records.stragglers import Parts, StepShare, Straggler
from cpu_train_stack.report import summary

# Of the last steps: what is shown as "now".
RECENT_STEPS = 50
# A job that writes nothing for so long, and for so many of its longest steps, may have died.
_SILENT_SECONDS = 60.0
_SILENT_STEPS = 5
# A launcher that restarts a job does so within this time after a failure: it stops the other ranks, and the new
# ranks import torch.
_RESTART_SECONDS = 30.0

Point = tuple[int, float]  # step and value


@dataclass(frozen=True)
class Snapshot:
    """`state`: "running", "silent" (no line for a while), "restarting" (it failed, and may start again),
    "finished", "failed" and "stopped" with the reason in `ending`, or "gone" (it no longer runs, and no end is
    recorded).

    `time`: of the snapshot. `silent`: seconds since the last line. `remaining`: seconds until the last step, None
    if unknown. `loss`, `metric`: points (step, value). `samples`, `tokens`: of all ranks per second, in the last
    steps; `mean_samples`, `mean_tokens`: since the start. `shares`: what a step of each rank took lately.
    `events`: all but the end.
    """

    time: float
    title: str
    state: str
    ending: str
    step: int
    planned: int
    remaining: float | None
    elapsed: float
    loss: Sequence[Point]
    metric_name: str
    metric: Sequence[Point]
    samples: float | None
    tokens: float | None
    mean_samples: float | None
    mean_tokens: float | None
    shares: Sequence[StepShare]
    parts: Parts | None
    straggler: Straggler | None
    findings: Sequence[Finding]
    events: Sequence[Event]
    silent: float
    restarts: int

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "failed", "stopped", "gone")


def of(job: RecordedJob, now: float, runs: bool | None = None) -> Snapshot:
    """`now`: seconds since the epoch. `runs`: whether the job's containers run, None if that is not known."""
    first = job.first
    end = job.end
    silent = max(0.0, now - job.time)
    recent = stragglers.shares(job, RECENT_STEPS)
    samples, tokens = summary.rates(job, recent)
    mean_samples, mean_tokens = summary.rates(job, stragglers.shares(job))
    metrics = [(log.step, name, value) for log in first.logs for name, value in log.values.items()]
    name = _metric_name([name for _, name, _ in metrics])
    return Snapshot(
        time=now,
        title=one_line(_title(job)),
        state=_state(job, silent, runs),
        ending=one_line(end.text) if end is not None else "",
        step=job.step,
        planned=first.start.last_step,
        remaining=None if end is not None else _remaining(job),
        elapsed=(end.time if end is not None else now) - summary.began(job),
        loss=_losses(job),
        metric_name=one_line(name),
        metric=[(step, value) for step, key, value in metrics if key == name and value is not None],
        samples=samples,
        tokens=tokens,
        mean_samples=mean_samples,
        mean_tokens=mean_tokens,
        shares=[recent[rank] for rank in sorted(recent)],
        parts=stragglers.mean_parts(job, RECENT_STEPS),
        straggler=stragglers.find(job, RECENT_STEPS),
        findings=findings.find(job, RECENT_STEPS),
        events=[
            replace(event, name=one_line(event.name), text=one_line(event.text))
            for event in first.events
            if event.name not in ENDS
        ],
        silent=silent,
        restarts=sum(start.training == 1 for start in first.starts[1:]),
    )


def _state(job: RecordedJob, silent: float, runs: bool | None) -> str:
    """`silent`: seconds since the last line."""
    if job.end is not None and job.end.name != "failure":
        return "stopped" if job.end.name == "stop" else "finished"
    if job.end is not None:
        return "restarting" if runs or silent < _RESTART_SECONDS else "failed"
    if runs is False:
        return "gone"
    longest = max((one.longest for rank in job.ranks.values() for one in rank.steps[-RECENT_STEPS:]), default=0.0)
    return "silent" if silent > max(_SILENT_SECONDS, _SILENT_STEPS * longest) else "running"


def _title(job: RecordedJob) -> str:
    start = job.first.start
    model = summary.model(job) or " ".join(start.command[:2])
    where = f"{count(job.world_size, 'rank')} on {count(job.nodes, 'node')}"
    return ", ".join(filter(None, (model, where, start.backend, f"pin {start.pin}" if start.pin else "")))


def _metric_name(names: Sequence[str]) -> str:
    """The metric of the last evaluation that is not its loss; its loss if there is no other."""
    found = [name for name in names if summary.is_metric(name)]
    return next((name for name in found if name != "eval_loss"), found[0] if found else "")


def _losses(job: RecordedJob) -> list[Point]:
    logged = [(log.step, log.values["loss"]) for log in job.first.logs if log.values.get("loss") is not None]
    if len(logged) > 1:
        return logged
    return [(one.step, one.loss) for one in job.first.steps if one.loss is not None]


def _remaining(job: RecordedJob) -> float | None:
    """Steps, and evaluations and checkpoints as often as before."""
    first = job.first
    steps: Sequence[Steps] = stragglers.window(first, RECENT_STEPS)
    left = first.start.last_step - job.step
    if not steps or left < 0:
        return None
    done = job.step - first.start.first_step
    between = sum(event.seconds for event in first.events if event.time >= first.start.time)
    each = median(one.seconds / one.steps for one in steps)
    return left * (each + (between / done if done > 0 else 0.0))
