"""`./inv bench scaling`: steps on 1, 2 and 4 containers of equal cores, and the prediction for 4 from 1 and 2."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text

from cpu_train_stack.bench.cases import GUIDES_RATIO, digits
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import MOST_CONTAINERS, MOST_CPUS, check_at_least
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine import topology
from tooling.basis.console import JsonOption
from tooling.basis.figures import terminal_table
from tooling.bench import plots, report, runner
from tooling.bench.forecast import extrapolation
from tooling.bench.forecast.extrapolation import FITTED_ON, Measured, all_reduce, apart, relative
from tooling.bench.forecast.request import node_counts
from tooling.bench.report import Document, OutputOption
from tooling.cluster import result
from tooling.cluster.compose import ClusterSpec, check_backend
from tooling.cluster.spec import CPU_PERIOD_US
from tooling.image.choice import Choice

CLUSTER = "scaling"
# A node that gets less of its processor time than this share competes with other programs.
BUSY = 0.85
_ENDS = "{predicted[efficiency_interval][0]:%} to {predicted[efficiency_interval][1]:%}"
COLUMNS = {
    "nodes": "{nodes}",
    "exchange": "{backend}",
    "samples/s": "{samples_per_second}",
    "step, ms": "{step_seconds:ms}",
    "efficiency": "{efficiency:%}",
    "vs. none": "{efficiency_to_apart:%}",
    "predicted": f"{{predicted[efficiency]:%}} ({_ENDS})",
}


@dataclass(frozen=True)
class ScalingOptions:
    """The options of `./inv bench scaling`. Raises UsageError."""

    choice: Choice
    backend: Annotated[tuple[str, ...], "ccl or gloo; may be repeated; default: both"] = ()
    nodes: Annotated[str, "numbers of containers to compare; all containers get equal shares of the machine"] = (
        "1,2,4"
    )
    seconds: Annotated[float, "approximate time to measure, without the start"] = 120.0
    cores: Annotated[float, "cores of each container, such as 0.25; default: equal shares of the machine"] = 0.0
    ratio: Annotated[
        float, "time of all_reduce divided by time of computing, which sets the batch size; default: the guides'"
    ] = 0.0
    output: OutputOption = None
    json: JsonOption = False

    def __post_init__(self) -> None:
        if min(self.counts) < 1 or 1 not in self.counts:
            raise UsageError(f"bench: --nodes is {self.nodes}, expected 1 and other numbers: 1,2,4")
        check_at_least("bench: --nodes", max(self.counts), 1, MOST_CONTAINERS)
        check_at_least("bench: --cores", self.cores, 0, MOST_CPUS)
        report.check_seconds(self.seconds)
        if not 0 <= self.ratio < 100:
            raise UsageError(f"bench: --ratio is {self.ratio:g}, expected more than 0 and less than 100")
        for name in self.backend:
            check_backend(name)

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of containers."""
        return node_counts(self.nodes)


def run(options: ScalingOptions) -> None:
    """Measure all numbers of nodes in turn, in one cluster with the largest number.

    Write scaling-TIME.json and .png to the output folder, and print a table or the document. Raises UsageError
    if the machine has too few cores, and Exit with the cluster's exit code if a measurement fails.
    """
    most = max(options.counts)
    available = len(topology.read().cores)
    if not 0 <= options.cores <= cores_of_each(available, most):
        raise UsageError(
            f"bench: --cores is {options.cores:g}, expected more than 0, "
            f"at most {cores_of_each(available, most):g}: {available} cores for {most} nodes"
        )
    folder = report.folder(options.output)
    engine, image = options.choice.ensure()
    each = options.cores or cores_of_each(available, most)
    turns = ", ".join(map(str, options.counts))
    say(f"{most} containers with {each:g} of {available} physical cores each; {turns} of them train in turn")
    quota = each if options.cores or limited(available, most) else None
    command = (
        *("bench", "scaling", f"--nodes={','.join(map(str, options.counts))}"),
        f"--ratio={options.ratio or GUIDES_RATIO:.4f}",
        f"--seconds={options.seconds:g}",
        *([f"--backends={','.join(options.backend)}"] if options.backend else []),
    )
    measured = runner.run_cluster(ClusterSpec(CLUSTER, image.id, most, 1, command, cpus=quota), engine)
    facts = {
        **report.facts(engine, image),
        "cores_of_each_node": each,
        "quota_period_us": CPU_PERIOD_US if quota else None,
    }
    with result.understood(runner.output_of(CLUSTER)):
        report.publish("scaling", make_document(measured, facts), folder, table, plots.scaling, options.json)


def cores_of_each(cores: int, nodes: int) -> float:
    """The cores of each node, the same for all: physical cores, or with fewer cores than nodes a share of one."""
    return float(cores // nodes) if cores >= nodes else 1 / -(-nodes // cores)


def limited(cores: int, nodes: int) -> bool:
    """Whether equal parts need a quota: nodes share cores, or the cores cannot be divided by the nodes."""
    return cores < nodes or cores % nodes > 0


def make_document(measured: Measured, facts: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("pin", "torch", "cpu", "ranks_per_node", "batch", "length", "gradient_bytes", "embedding_bytes")
    return {
        **facts,
        **{key: measured[key] for key in kept},
        "dtype": "float32",
        "scaling": "strong, with a fixed batch of each rank",
        "ratio": {"wanted": measured["ratio"], "seen": ratios(measured)},
        "rows": [_row(phase, measured) for phase in measured["phases"]],
        "predicted": extrapolation.predictions(measured, facts["cores_of_each_node"]),
        "all_reduce": [
            {
                "nodes": phase["nodes"],
                "backend": phase["backend"],
                "bytes": one["bytes"],
                "seconds": median(one["seconds"]),
            }
            for phase in measured["phases"]
            for one in phase["all_reduce"]
        ],
        "environment": measured["environment"],
    }


def _row(phase: Mapping[str, Any], measured: Measured) -> dict[str, Any]:
    """An efficiency is the median of the ratios of all rounds: a slow round has no effect.

    `efficiency_to_apart` compares with the same nodes without an exchange of gradients, which shows the limits of
    the machine.
    """
    seconds, nodes = median(phase["seconds"]), phase["nodes"]
    samples = measured["batch"] * measured["ranks_per_node"] * nodes
    to_one, to_apart = (median(relative(phase["seconds"], apart(measured, number))) for number in (1, nodes))
    return {
        "nodes": nodes,
        "backend": phase["backend"] or plots.APART,
        "samples_per_second": round(samples / seconds, 3),
        "efficiency": round(1 / to_one, 4),
        "efficiency_to_apart": round(1 / to_apart, 4),
        "step_seconds": seconds,
        "step_seconds_rounds": list(map(digits, phase["seconds"])),
        "rounds": len(phase["seconds"]),
        "cpu_share": median(phase["cpu_share"]),
        "throttled_share": median(phase["throttled_share"]),
    }


def ratios(measured: Measured) -> dict[str, float]:
    """For each backend: the time to all_reduce the gradients between two nodes, to the time of a step on one."""
    return {
        phase["backend"]: round(all_reduce(phase, measured["gradient_bytes"]) / median(apart(measured, 1)), 4)
        for phase in measured["phases"]
        if phase["nodes"] == FITTED_ON and phase["backend"]
    }


def table(document: Document) -> RenderableType:
    """The measurements and predictions, a row for each number of nodes and backend."""
    shown = terminal_table(COLUMNS, rows_with_predictions(document), plots.model(document))
    return Group(shown, *(Text(line) for line in _remarks(document)))


def rows_with_predictions(document: Document) -> list[dict[str, Any]]:
    """Each row with the prediction for its nodes and backend, or None."""
    predicted = {(one["nodes"], one["backend"]): one for one in document["predicted"]}
    return [{**row, "predicted": predicted.get((row["nodes"], row["backend"]))} for row in document["rows"]]


def _remarks(document: Document) -> list[str]:
    """The explanations below the table."""
    seen = ", ".join(f"{backend} {value:.2f}" for backend, value in document["ratio"]["seen"].items())
    lines = [
        f"all_reduce of {document['gradient_bytes'] / 1e6:.0f} MB between two nodes / step of one node: "
        f"{seen or 'not measured'} (wanted: {document['ratio']['wanted']:.2f})",
        "none, vs. none: all nodes train at the same time, without exchanging gradients",
        "predicted: efficiency, from 1 and 2 nodes",
    ]
    cores = document["cores_of_each_node"]
    if document["quota_period_us"]:
        lines.append(
            f"cores: {cores:g} of each node, by a quota in periods of {document['quota_period_us'] / 1000:g} ms"
        )
    used = min(row["cpu_share"] for row in document["rows"] if row["backend"] == plots.APART)
    if used < BUSY * min(1.0, cores):
        lines.append(
            f"the machine was busy: a node with {min(1.0, cores):g} of a core got {used:.2f}; stop other "
            "programs, or lower --cores"
        )
    return lines
