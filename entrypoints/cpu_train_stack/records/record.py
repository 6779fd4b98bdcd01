"""The lines of a rank's record file: JSON Lines, one object per line, whose key "kind" names its class below.

A file is only ever appended to, so it can be read while the job runs and after a crash. An incomplete last line
is ignored. Each start of the rank (a restart, a resumed job) appends another `Start`. Times are seconds since the
epoch (`time`) or durations in seconds, sizes are bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Union

from cpu_train_stack.cli import files
from cpu_train_stack.records import types

FOLDER = "_records"  # in the output folder; Trainer does not push names that start with an underscore


@dataclass(frozen=True)
class Start:
    """The rank started, or started again. `first_step`: the number of steps done before, from a checkpoint.

    `job`: the same after every restart of a job, empty if nothing would restart it. `training`: 2 if the process
    has trained with the same output folder before, and so on. `cores`: the CPUs of the rank.
    `plan`: the document of `entrypoint plan --json` for the rank. `topology`: of the node, see machine.facts;
    only for the first rank of a node. `checks`: warnings and errors of `doctor`'s checks, likewise.
    """

    time: float
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    host: str = ""
    launcher: str = ""
    backend: str = ""
    job: str = ""
    training: int = 1
    pin: str = ""
    image: str = ""
    command: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    model: str = ""  # its class
    cpu_model: str = ""
    bf16: str = ""
    cores: list[int] = field(default_factory=list)
    threads: int = 0
    first_step: int = 0
    last_step: int = 0  # planned
    rows_per_step: int = 0  # of all ranks
    plan: dict[str, Any] = field(default_factory=dict)
    topology: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Steps:
    """`steps` optimizer steps, the last of which is `step`; durations and counts are sums over them.

    `seconds`: from reading the first row to the end of the optimizer's step, without evaluations and checkpoints.
    `forward`, `backward`: computing. `wait`: in collectives, for the network and for slower ranks. `read`: reading
    rows. `optimizer`: clipping, optimizer, schedule. `longest`: the longest step. `computed`: tokens, of which
    `useful` are not padding; 0 if the model has no tokens. `loss`: the rank's mean, None if it is not a number.
    """

    time: float
    step: int
    steps: int
    seconds: float
    forward: float
    backward: float
    wait: float
    read: float
    optimizer: float
    longest: float
    rows: int
    computed: int
    useful: int
    loss: float | None = None

    @property
    def busy(self) -> float:
        """The seconds in which the rank did not wait for others."""
        return self.seconds - self.wait


_COUNTS = ("rows", "computed", "useful")
SUMMED = ("seconds", "forward", "backward", "wait", "read", "optimizer", *_COUNTS)


def summed(parts: Sequence[Steps]) -> Steps:
    """Successive records as one."""
    if len(parts) == 1:
        return parts[0]
    losses = [(one.loss, one.steps) for one in parts if one.loss is not None]
    counted = sum(number for _, number in losses)
    sums: dict[str, Any] = {name: round(sum(getattr(one, name) for one in parts), 6) for name in SUMMED}
    return Steps(
        parts[-1].time,
        parts[-1].step,
        sum(one.steps for one in parts),
        **sums,
        longest=max(one.longest for one in parts),
        loss=sum(loss * number for loss, number in losses) / counted if counted else None,
    )


def without_last(record: Steps, number: int) -> Steps:
    """The record without its last steps. They have taken as long as the others, as far as is known."""
    left = record.steps - number
    sums = {name: getattr(record, name) * left / record.steps for name in SUMMED}
    return replace(
        record,
        **{name: round(value) if name in _COUNTS else round(value, 6) for name, value in sums.items()},
        time=round(record.time - record.seconds + sums["seconds"], 3),
        step=record.step - number,
        steps=left,
    )


@dataclass(frozen=True)
class Sample:
    """The rank's process at the end of a step.

    `memory`: resident bytes. `processor`: its CPU time since it began. `throttled`: how long the container's quota
    has paused its processes, summed over CPUs, since the container began. `migrations`: of its main thread to
    another CPU, since it began. `clock`: of its first core in MHz. `remote`: the share of its memory that is on
    NUMA nodes other than its cores'. `delayed`: how long its most delayed thread was ready to run in this step's
    forward and backward while its core ran something else. None: not measured.
    """

    time: float
    step: int
    memory: int
    processor: float
    throttled: float
    migrations: int
    delayed: float | None = None
    clock: float | None = None
    remote: float | None = None


@dataclass(frozen=True)
class Log:
    """What Trainer logged on rank 0: loss, learning_rate, grad_norm, eval_loss, eval_accuracy, ..."""

    time: float
    step: int
    values: dict[str, float]


@dataclass(frozen=True)
class Event:
    """Something that happened: `name` is "checkpoint", "evaluation", "failure", "stop" or "end".

    `seconds`: how long it took, 0 if it took no time. `text`: the cause of a failure, the signal of a stop.
    """

    time: float
    step: int
    name: str
    seconds: float = 0.0
    text: str = ""


Line = Union[Start, Steps, Sample, Log, Event]
_KINDS: dict[str, type[Line]] = {kind.__name__.lower(): kind for kind in (Start, Steps, Sample, Log, Event)}
_CHECKS = {
    kind: {one.name: types.check_of(one.name, str(one.type)) for one in fields(kind)} for kind in _KINDS.values()
}


def path(output: Path, rank: int) -> Path:
    return output / FOLDER / f"rank-{rank:05}.jsonl"


def encode(line: Line) -> str:
    """The text of a line, with its newline. Numbers that JSON does not have (NaN, infinity) become null."""
    document = {"kind": type(line).__name__.lower(), **vars(line)}
    return json.dumps(finite(document), separators=(",", ":"), default=str) + "\n"


def decode(text: str) -> Line | None:
    """The line, or None if it is incomplete, or of a kind that this version does not know.

    A value of a wrong type is left out, as if it were not there.
    """
    try:
        document = files.parse_json(text)
        kind = _KINDS[document["kind"]]
        checks = _CHECKS[kind].items()
        return kind(
            **{name: document[name] for name, check in checks if name in document and check(document[name])}
        )
    except (ValueError, KeyError, TypeError):
        return None


def finite(value: Any) -> Any:
    """The value with None instead of NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
