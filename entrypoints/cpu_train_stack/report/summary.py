"""How a job went, in one sentence and a few numbers. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpu_train_stack.page.blocks import Tile
from cpu_train_stack.page.texts import NOTHING, duration, number
from cpu_train_stack.records import stragglers
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.record import Event
from cpu_train_stack.records.stragglers import StepShare

# Trainer's measurements of the evaluation itself.
_OF_EVALUATION = ("_runtime", "_per_second", "_samples")
_LONGEST_REASON = 300  # characters


@dataclass(frozen=True)
class Summary:
    """`state`: "finished", "failed", "stopped" or "open" (no end is recorded).

    `seconds`: from the first start to the end. `samples`, `tokens`: of all ranks per second, `tokens` without
    padding. None: unknown.
    """

    state: str
    verdict: str
    seconds: float
    steps: int
    planned: int
    loss: float | None
    metric_name: str
    metric: float | None
    samples: float | None
    tokens: float | None

    @property
    def tiles(self) -> list[Tile]:
        shown = [
            Tile("Duration", duration(self.seconds)),
            Tile(
                "Steps",
                f"{self.steps:,}" if self.steps or self.planned else NOTHING,
                f"of {self.planned:,} planned" if self.planned else "",
            ),
            Tile("Loss", number(self.loss), "training, the last steps" if self.loss is not None else ""),
            Tile(self.metric_name[:1].upper() + self.metric_name[1:], number(self.metric), "evaluation"),
            Tile("Samples/s", number(self.samples), "all ranks"),
            Tile("Useful tokens/s", number(self.tokens), "all ranks, without padding"),
        ]
        return [tile for tile in shown if tile.value != NOTHING]


def began(job: RecordedJob) -> float:
    """The job's first start, in seconds since the epoch."""
    return min(rank.starts[0].time for rank in job.ranks.values())


def of(job: RecordedJob, result: Mapping[str, Any]) -> Summary:
    """`result`: result.json, empty if the run has not written it."""
    end, rank = job.ending
    state = "open" if end is None else {"failure": "failed", "stop": "stopped"}.get(end.name, "finished")
    seconds = max(0.0, (end.time if end else job.time) - began(job))
    planned = job.first.start.last_step
    name, metric = _metric(job, result)
    samples, tokens = rates(job, stragglers.shares(job))
    return Summary(
        state,
        _verdict(state, job, end, rank, seconds),
        seconds,
        job.step,
        planned,
        _loss(job, result),
        name,
        metric,
        finite(result.get("train_samples_per_second")) or samples,
        finite(result.get("train_tokens_per_second")) or tokens,
    )


def last_logged(job: RecordedJob) -> dict[str, float]:
    """The last value of everything that Trainer logged."""
    found: dict[str, float] = {}
    for log in job.first.logs:
        found.update({name: value for name, value in log.values.items() if finite(value) is not None})
    return found


def metrics(job: RecordedJob) -> dict[str, float]:
    """The last evaluation's metrics, by name: eval_loss, eval_accuracy, ..."""
    return {name: value for name, value in last_logged(job).items() if is_metric(name)}


def is_metric(name: str) -> bool:
    """Whether this is a metric of the model, not the speed of the evaluation."""
    return name.startswith("eval_") and not name.endswith(_OF_EVALUATION)


def _verdict(state: str, job: RecordedJob, end: Event | None, rank: int, seconds: float) -> str:
    planned = job.first.start.last_step
    # Without steps, a job only evaluates.
    steps = f" {job.step:,} of {planned:,} steps in" if planned else f" {job.step:,} steps in" if job.step else ""
    took = f"{steps} {duration(seconds)}"
    if end is None:
        return f"Still running, or killed: no end is recorded after{took}."
    if state == "failed":
        who = f" on rank {rank}" if job.world_size > 1 and not end.text.startswith("rank ") else ""
        return f"Failed{who} after{took}" + (f": {_shortened(end.text)}" if end.text else ".")
    if state == "stopped":
        how = f"by {end.text}" if end.text.startswith("SIG") else f"{end.text},"
        return f"Stopped {how} after{took}."
    if planned and job.step < planned:
        return f"Ended early, after{took}."
    return f"Finished{took}." if steps else f"Finished in{took}."


def _shortened(text: str) -> str:
    """In one line; the table of events has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON].rstrip()}…"


def _loss(job: RecordedJob, result: Mapping[str, Any]) -> float | None:
    loss = finite(result.get("train_loss_last"))
    if loss is not None:
        return loss  # as in the last line of `train`
    if (logged := last_logged(job).get("loss")) is not None:
        return logged
    last = [rank.steps[-1].loss for rank in job.ranks.values() if rank.steps]
    known = [one for one in last if one is not None]
    return sum(known) / len(known) if known else None


def _metric(job: RecordedJob, result: Mapping[str, Any]) -> tuple[str, float | None]:
    """The name and value of the metric after training."""
    name, value = result.get("metric_name"), finite(result.get("metric_after"))
    if isinstance(name, str) and value is not None:
        return name, value
    found = metrics(job)
    for key, last in found.items():
        if key != "eval_loss":
            return key[len("eval_") :], last
    return ("evaluation loss", found["eval_loss"]) if "eval_loss" in found else ("", None)


def rates(job: RecordedJob, shares: Mapping[int, StepShare]) -> tuple[float | None, float | None]:
    """Samples and useful tokens per second of all ranks. Ranks without a file count like the others."""
    known = [share for share in shares.values() if share.seconds > 0]
    scale = job.world_size / len(known) if known else 0.0
    samples = scale * sum(share.rows / share.seconds for share in known)
    tokens = scale * sum(share.useful / share.seconds for share in known)
    return samples or None, tokens or None


def model(job: RecordedJob) -> str:
    """What the configuration or the command names as the model, with its class if that is a path."""
    found, kind = _setting(job, "model_name_or_path"), job.first.start.model
    return f"{kind} from {found}" if kind and found.startswith(("/", ".")) else found or kind


def data(job: RecordedJob) -> str:
    """The data set that the configuration or the command names, or the file; empty if neither does."""
    names = [_setting(job, name) for name in ("dataset_name", "dataset_config_name", "task_name")]
    return " ".join(filter(None, names)) or _setting(job, "train_file").rpartition("/")[2]


def _setting(job: RecordedJob, wanted: str) -> str:
    start = job.first.start
    found = start.config.get(wanted)
    for word, following in zip(start.command, [*start.command[1:], ""]):
        name, _, value = word.partition("=")
        if not found and name == f"--{wanted}":
            found = value or following
    return str(found or "")


def finite(value: Any) -> float | None:
    """The number; None for anything else, and for an integer that no float can have."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= sys.float_info.max else None
