"""What `./inv plan-cluster` answers: a request checked, its job and inputs, the rows, the recommendation. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from entrypoints.plan.ccl import CORES_WORTH_A_WORKER
from tooling.basis.errors import UsageError
from tooling.forecast import assumptions, models, network, processors
from tooling.forecast.assumptions import OVERLAP, link_inputs
from tooling.forecast.estimate import Estimate
from tooling.forecast.models import Model
from tooling.forecast.processors import CYCLE_FLOPS
from tooling.forecast.step import Inputs, Job, Prediction, predict

# A run on one node, repeated on another day or another node of the same kind.
SPEED_SPREAD = 0.05
# Start, tokenizing, checkpoints: seconds for one job, minutes for another.
FIXED_FACTOR = 3.0


@dataclass(frozen=True)
class Request:
    """The command line's. Zero where a number was not given."""

    model: str
    nodes: tuple[int, ...]
    network: str
    samples: int
    epochs: float
    length: int
    batch_size: int
    ranks_per_node: int
    evaluated: int
    samples_per_second: float
    cores: int
    ghz: float
    isa: str
    bf16_gradients: bool
    fixed_seconds: float
    efficiency: float

    def __post_init__(self) -> None:
        needed = {"--samples": self.samples, "--epochs": self.epochs, "--seq-length": self.length}
        needed |= {"--batch-size": self.batch_size, "--ranks-per-node": self.ranks_per_node}
        for name, value in needed.items():
            if not 0 < value < math.inf:
                raise UsageError(f"plan-cluster: {name} is {value:g}, expected more than 0")
        for name, value in {
            "--single-node-samples-per-second": self.samples_per_second,
            "--cores": self.cores,
            "--ghz": self.ghz,
            "--fixed-seconds": self.fixed_seconds,
            "--eval-samples": self.evaluated,
        }.items():
            if not 0 <= value < math.inf:
                raise UsageError(f"plan-cluster: {name} is {value:g}, expected 0 or more")
        if not 0 < self.efficiency <= 1:
            raise UsageError(f"plan-cluster: --efficiency is {self.efficiency:g}, expected more than 0, at most 1")
        if not self.nodes or min(self.nodes) < 1:
            raise UsageError(f"plan-cluster: --nodes is {_list(self.nodes)}, expected 1 or more each: 1,2,4,8")
        if self.cores and self.cores < self.ranks_per_node:
            raise UsageError(
                f"plan-cluster: --cores is {self.cores}, expected one or more for each of "
                f"{self.ranks_per_node} ranks"
            )
        if not self.samples_per_second and not (self.cores and self.ghz and self.isa):
            raise UsageError(
                "plan-cluster: the speed of one node is missing: pass --single-node-samples-per-second, which a "
                "short train on one node prints and writes to result.json, or for a rough guess --cores, --ghz "
                "and --isa"
            )
        if self.isa and self.isa not in CYCLE_FLOPS:
            raise UsageError(f"plan-cluster: --isa is {self.isa!r}, expected one of {', '.join(CYCLE_FLOPS)}")


@dataclass(frozen=True)
class Plan:
    """The answer. `recommended`: the most nodes that are worth it, None where none of those asked for are."""

    model: Model
    job: Job
    inputs: Inputs
    rows: tuple[Prediction, ...]
    recommended: int | None
    speed_is_measured: bool
    warnings: tuple[str, ...]


def make(request: Request) -> Plan:
    """Raises UsageError for a model or a network that cannot be read."""
    model = models.find(request.model)
    width = 2 if request.bf16_gradients else 4
    job = Job(
        samples=request.samples,
        epochs=request.epochs,
        batch_size=request.batch_size,
        gradient_bytes=width * model.parameters,
        last_bytes=width * model.embeddings,
        ranks_per_node=request.ranks_per_node,
        evaluated=request.evaluated,
    )
    inputs = _inputs(request, model)
    rows = tuple(predict(job, nodes, inputs) for nodes in sorted(set(request.nodes)))
    worth = [row.nodes for row in rows if row.efficiency.value >= request.efficiency]
    measured = request.samples_per_second > 0
    return Plan(model, job, inputs, rows, max(worth, default=None), measured, _warnings(request, model, rows))


def _inputs(request: Request, model: Model) -> Inputs:
    if request.samples_per_second:
        speed = Estimate.within(request.samples_per_second, SPEED_SPREAD)
    else:
        speed = processors.samples_per_second(model, request.length, request.cores, request.ghz, request.isa)
    fixed = Estimate.factor(request.fixed_seconds, FIXED_FACTOR) if request.fixed_seconds else Estimate.exact(0)
    share, overlap = _cores_for_communication(request)
    return Inputs(
        samples_per_second=speed,
        compute_share=share,
        overlap=overlap,
        fixed_seconds=fixed,
        **link_inputs(network.parse(request.network)),
    )


def _cores_for_communication(request: Request) -> tuple[Estimate, Estimate]:
    """The share of cores left for computing, and how much overlaps with it then, as the image's `plan` decides."""
    if not request.cores:  # of a usual node: one of 16 or more cores
        return Estimate(1 - 1 / 32, 1 - 1 / CORES_WORTH_A_WORKER, 1), OVERLAP
    overlap = assumptions.overlap(request.cores / request.ranks_per_node)
    kept = request.ranks_per_node if overlap is OVERLAP else 0
    return Estimate.exact(1 - kept / request.cores), overlap


def _warnings(request: Request, model: Model, rows: Sequence[Prediction]) -> tuple[str, ...]:
    found = []
    if not request.samples_per_second:
        found.append(
            "one node's speed is a guess from its cores: one measured run on one of the nodes "
            "(--single-node-samples-per-second) narrows every time by far"
        )
    if not model.quadratic:
        found.append(
            "only the number of parameters is known: word embeddings are taken as a fifth of it, attention's own "
            "work as nothing; a name or a config.json is better"
        )
    few = [row.nodes for row in rows if row.nodes > 1 and row.steps / request.epochs < 20]
    if few:
        found.append(
            f"with {_list(few)} nodes an epoch has fewer than 20 steps: the whole batch is "
            f"{request.batch_size * request.ranks_per_node * few[0]} samples or more, which changes what the "
            "model learns"
        )
    return tuple(found)


def document(request: Request, plan: Plan) -> dict[str, Any]:
    """For --json."""
    return {
        "model": plan.model.name,
        "parameters": plan.model.parameters,
        "gradient_bytes": plan.job.gradient_bytes,
        "flops_per_sample": plan.model.flops(request.length),
        "interval": 0.9,
        "inputs": {name: _ends(estimate) for name, estimate in vars(plan.inputs).items()},
        "speed_is_measured": plan.speed_is_measured,
        "rows": [
            {
                "nodes": row.nodes,
                "steps": row.steps,
                "global_batch": plan.job.batch_size * plan.job.ranks_per_node * row.nodes,
                "seconds": _ends(row.seconds),
                "speedup": _ends(row.speedup),
                "efficiency": _ends(row.efficiency),
                "communication_share": round(row.communication_share, 4),
                "waiting_share": round(row.waiting_share, 4),
                "node_hours": round(row.node_hours, 4),
            }
            for row in plan.rows
        ],
        "efficiency_wanted": request.efficiency,
        "recommended": plan.recommended,
        "warnings": list(plan.warnings),
    }


def _ends(estimate: Estimate) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in vars(estimate).items()}


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "empty"
