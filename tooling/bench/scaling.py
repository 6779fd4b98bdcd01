"""`./inv bench scaling`: steps on 1, 2 and 4 containers of equal cores, and the prediction for 4 from 1 and 2."""

from dataclasses import dataclass
from typing import Annotated

from cpu_train_stack.bench.cases import GUIDES_RATIO
from cpu_train_stack.machine import topology
from tooling.basis.console import JsonOption
from tooling.basis.errors import MOST_CONTAINERS, MOST_CPUS, UsageError, check_at_least
from tooling.basis.say import say
from tooling.bench import collectives, output, plots, scaling_report
from tooling.bench.forecast.request import node_counts
from tooling.bench.output import OutputOption
from tooling.cluster.compose import CPU_PERIOD_US, ClusterSpec, check_backend
from tooling.image.choice import Choice

CLUSTER = "scaling"


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
        if not 0 < self.seconds < 3600:
            raise UsageError(f"bench: --seconds is {self.seconds:g}, expected more than 0 and less than 3600")
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
    folder = output.folder(options.output)
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
    spec = ClusterSpec(CLUSTER, image.id, most, 1, command, cpus=quota)
    measured = collectives.measure(spec, engine)
    facts = {
        **output.facts(engine, image),
        "cores_of_each_node": each,
        "quota_period_us": CPU_PERIOD_US if quota else None,
    }
    document = scaling_report.document(measured, facts)
    output.publish("scaling", document, folder, scaling_report.table, plots.scaling, options.json)


def cores_of_each(cores: int, nodes: int) -> float:
    """The cores of each node, the same for all: physical cores, or with fewer cores than nodes a share of one."""
    return float(cores // nodes) if cores >= nodes else 1 / -(-nodes // cores)


def limited(cores: int, nodes: int) -> bool:
    """Whether equal parts need a quota: nodes share cores, or the cores cannot be divided by the nodes."""
    return cores < nodes or cores % nodes > 0
