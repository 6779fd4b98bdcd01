"""A forecast: the options of `./inv plan-cluster`, the plan made from them, and its JSON document. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.plan.ccl import CORES_WORTH_A_WORKER
from tooling.bench.forecast import inputs, models
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.models import Model
from tooling.bench.forecast.step import ForecastJob, Inputs, Prediction, predict

# The speed of one node varies between days, and between nodes of the same kind.
SPEED_SPREAD = 0.05
# Start, tokenizing and checkpoints, on any number of nodes: seconds in one job, minutes in another.
FIXED_SECONDS = Estimate.factor(30, 3)
# Far more than any job has.
_MOST = 1e15
_POSITIVE = ("samples", "epochs", "seq_length", "batch_size", "ranks_per_node")
_OPTIONAL = ("single_node_samples_per_second", "cores", "ghz")


def node_counts(text: str) -> tuple[int, ...]:
    """Parse `1,2,4`. Raises UsageError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--nodes is {text!r}, expected numbers separated by commas: 1,2,4,8") from None


@dataclass(frozen=True)
class ForecastRequest:
    """The options, as typed. 0 means that a number was not given. Raises UsageError for values out of range."""

    model: Annotated[
        str, "required: a name (bert-base, MiniLM, ...), a number of parameters (110M) or a config.json"
    ] = ""
    nodes: Annotated[str, "the numbers of nodes to compare"] = "1,2,4,8"
    network: Annotated[
        str, "bit rate of each node's network card (10g, 25g, 100g), optionally with the latency: 25g,40us"
    ] = "25g"
    samples: Annotated[int, "required: training samples in one epoch"] = 0
    epochs: Annotated[float, "epochs to train"] = 3.0
    seq_length: Annotated[int, "tokens in a sample"] = 128
    batch_size: Annotated[int, "samples in a batch of one rank"] = 32
    ranks_per_node: Annotated[int, "training processes on each node"] = 1
    single_node_samples_per_second: Annotated[
        float, "the speed of one node, as train prints it; default: a guess from --cores, --ghz and --isa"
    ] = 0.0
    cores: Annotated[int, "physical cores of a node; default: assume 16 or more for each rank"] = 0
    ghz: Annotated[float, "clock rate in GHz while all cores are busy; required for a guess of the speed"] = 0.0
    isa: Annotated[
        str,
        "instructions for matrix products: avx2, avx512, avx512_bf16 or amx; required for a guess of the speed",
    ] = ""
    bf16_gradients: Annotated[bool, "exchange gradients in bf16, as train --ddp_comm_hook bf16 does"] = False
    efficiency: Annotated[float, "recommend the largest number of nodes with at least this efficiency"] = 0.8

    def __post_init__(self) -> None:
        missing = [flag for flag, value in (("--model", self.model), ("--samples", self.samples)) if not value]
        if missing:
            example = "for example --model bert-base --samples 400000"
            raise UsageError(f"plan-cluster: missing {' and '.join(missing)}: {example}")
        for field in (*_POSITIVE, *_OPTIONAL):
            value = getattr(self, field)
            if not 0 <= value <= _MOST or (field in _POSITIVE and not value):
                flag, least = field.replace("_", "-"), "more than 0" if field in _POSITIVE else "0 or more"
                raise UsageError(f"plan-cluster: --{flag} is {value:g}, expected {least}, at most {_MOST:g}")
        if not 0 < self.efficiency <= 1:
            raise UsageError(f"plan-cluster: --efficiency is {self.efficiency:g}, expected more than 0, at most 1")
        if min(self.node_counts) < 1:
            raise UsageError(f"plan-cluster: --nodes is {self.nodes}, expected 1 or more each: 1,2,4,8")
        if self.cores and self.cores < self.ranks_per_node:
            raise UsageError(
                f"plan-cluster: --cores is {self.cores}, expected one or more for each of "
                f"{self.ranks_per_node} ranks"
            )
        if not self.single_node_samples_per_second and not (self.cores and self.ghz and self.isa):
            raise UsageError(
                "plan-cluster: the speed of one node is missing: pass --single-node-samples-per-second, which a "
                "short train on one node prints and writes to result.json, or for a rough guess --cores, --ghz "
                "and --isa"
            )
        if self.isa and self.isa not in inputs.CYCLE_FLOPS:
            raise UsageError(
                f"plan-cluster: --isa is {self.isa!r}, expected one of {', '.join(inputs.CYCLE_FLOPS)}"
            )

    @property
    def node_counts(self) -> tuple[int, ...]:
        return node_counts(self.nodes)


@dataclass(frozen=True)
class ForecastPlan:
    """The forecast. `recommended`: the most nodes that reach the wanted efficiency, or None if none does."""

    model: Model
    job: ForecastJob
    inputs: Inputs
    rows: tuple[Prediction, ...]
    recommended: int | None
    speed_is_measured: bool
    warnings: tuple[str, ...]


def make(request: ForecastRequest) -> ForecastPlan:
    """Raises UsageError if the model or the network is unknown, or a number is out of the range of a float."""
    model = models.find(request.model)
    width = 2 if request.bf16_gradients else 4
    job = ForecastJob(
        samples=request.samples,
        epochs=request.epochs,
        batch_size=request.batch_size,
        gradient_bytes=width * model.parameters,
        last_bytes=width * model.embeddings,
        ranks_per_node=request.ranks_per_node,
    )
    try:
        known = _inputs(request, model)
        rows = tuple(predict(job, nodes, known) for nodes in sorted(set(request.node_counts)))
    except (ArithmeticError, ValueError):
        raise UsageError(
            "plan-cluster: the numbers are too large or too small for a forecast: check --samples, --epochs, "
            "--nodes and the speed of one node"
        ) from None
    efficient = [row.nodes for row in rows if row.efficiency.value >= request.efficiency]
    return ForecastPlan(
        model=model,
        job=job,
        inputs=known,
        rows=rows,
        recommended=max(efficient, default=None),
        speed_is_measured=request.single_node_samples_per_second > 0,
        warnings=_warnings(request, model, rows),
    )


def _inputs(request: ForecastRequest, model: Model) -> Inputs:
    computing, share, overlap = _cores(request)
    if request.single_node_samples_per_second:
        speed = Estimate.within(request.single_node_samples_per_second, SPEED_SPREAD)
    else:
        speed = inputs.samples_per_second(model, request.seq_length, computing, request.ghz, request.isa)
    return Inputs(
        samples_per_second=speed,
        compute_share=share,
        overlap=overlap,
        fixed_seconds=FIXED_SECONDS,
        **inputs.link_inputs(inputs.parse_network(request.network)),
    )


def _cores(request: ForecastRequest) -> tuple[int, Estimate, Estimate]:
    """The cores that compute on a node that trains alone, their share that computes in a cluster, and the overlap.

    As the image's `plan` decides. Several ranks keep cores for communication also on a single node.
    """
    several = request.ranks_per_node > 1
    if not request.cores:  # assume a node with 16 or more cores for each rank
        kept = Estimate(1 - 1 / 32, 1 - 1 / CORES_WORTH_A_WORKER, 1)
        return 0, Estimate.exact(1) if several else kept, inputs.OVERLAP
    overlap = inputs.overlap(request.cores / request.ranks_per_node)
    remaining = request.cores - (request.ranks_per_node if overlap is inputs.OVERLAP else 0)
    alone = remaining if several else request.cores
    return alone, Estimate.exact(remaining / alone), overlap


def _warnings(request: ForecastRequest, model: Model, rows: Sequence[Prediction]) -> tuple[str, ...]:
    found = []
    if not request.single_node_samples_per_second:
        found.append(
            "the speed of one node is a guess from its cores: one measured run on one of the nodes "
            "(--single-node-samples-per-second) makes every time far more certain"
        )
    if not model.quadratic:
        found.append(
            "only the number of parameters is known: a fifth of them is counted as word embeddings, and the work "
            "of attention itself is not counted; pass a name or a config.json instead"
        )
    few = [row.nodes for row in rows if row.nodes > 1 and row.steps / request.epochs < 20]
    if few:
        found.append(
            f"with {','.join(map(str, few))} nodes an epoch has fewer than 20 steps: the batch of all ranks has "
            f"{request.batch_size * request.ranks_per_node * few[0]} samples or more, which changes what the "
            "model learns"
        )
    return tuple(found)


def document(request: ForecastRequest, plan: ForecastPlan) -> dict[str, Any]:
    """The document of --json."""
    batch = plan.job.batch_size * plan.job.ranks_per_node
    rows = [{**asdict(row), "global_batch": batch * row.nodes, "node_hours": row.node_hours} for row in plan.rows]
    return {
        "model": plan.model.name,
        "parameters": plan.model.parameters,
        "gradient_bytes": plan.job.gradient_bytes,
        "flops_per_sample": plan.model.flops(request.seq_length),
        "interval": 0.9,
        "inputs": _rounded(asdict(plan.inputs)),
        "speed_is_measured": plan.speed_is_measured,
        "rows": [_rounded(row) for row in rows],
        "efficiency_wanted": request.efficiency,
        "recommended": plan.recommended,
        "warnings": list(plan.warnings),
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
