"""`./inv bench collectives`: measures the process group within a container and between containers."""

import json
import sys
from argparse import ArgumentTypeError
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from invoke.exceptions import Exit

from cpu_train_stack import contract
from cpu_train_stack.bench import cases
from tooling.basis.console import JsonOption
from tooling.basis.errors import MOST_CONTAINERS, MOST_RANKS, UsageError, check_at_least
from tooling.basis.say import say
from tooling.bench import collectives_report, output, plots
from tooling.bench.output import OutputOption
from tooling.cluster import run
from tooling.cluster.compose import ClusterSpec, Mount
from tooling.engine.api import Engine
from tooling.image.choice import Choice

CLUSTER = "bench"
# The collective in the picture: DDP calls it in every step. The table has all collectives.
PLOTTED = "all_reduce"


@dataclass(frozen=True)
class CollectivesOptions:
    """The options of `./inv bench collectives`. Raises UsageError."""

    choice: Choice
    nodes: Annotated[int, "containers of the second measurement, with one rank each; 1 skips this measurement"] = 2
    ranks: Annotated[int, "ranks in the single container of the first measurement"] = 2
    sizes: Annotated[
        str | None, "tensor sizes such as 4K,25M, for all_reduce only; default: 4K to 100M, and other collectives"
    ] = None
    seconds: Annotated[float, "approximate time to measure each size"] = 2.0
    output: OutputOption = None
    json: JsonOption = False

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UsageError(
                f"bench: --nodes is {self.nodes}, expected 2 or more, or 1 to measure one container only"
            )
        if self.ranks < 2:
            raise UsageError(f"bench: --ranks is {self.ranks}, expected 2 or more: a single rank has no peer")
        check_at_least("bench: --nodes", self.nodes, 1, MOST_CONTAINERS)
        check_at_least("bench: --ranks", self.ranks, 2, MOST_RANKS)
        if not 0 < self.seconds < 3600:
            raise UsageError(f"bench: --seconds is {self.seconds:g}, expected more than 0 and less than 3600")
        try:
            for size in self.sizes.split(",") if self.sizes is not None else ():
                cases.parse_size(size)
        except ArgumentTypeError as error:
            raise UsageError(f"bench: --sizes: {error}") from error

    @property
    def command(self) -> tuple[str, ...]:
        """The image's `bench` with its arguments."""
        sizes = () if self.sizes is None else (f"--sizes={self.sizes}",)
        return ("bench", "collectives", f"--seconds={self.seconds:g}", *sizes)


def collectives(options: CollectivesOptions) -> None:
    """Measure `ranks` ranks in one container, then `nodes` containers with one rank each.

    Write collectives-TIME.json and .png to the output folder, and print a table or the document. Raises Exit
    with the cluster's exit code if a measurement fails.
    """
    folder = output.folder(options.output)
    engine, image = options.choice.ensure()
    documents = []
    for node_count, ranks_per_node in ((1, options.ranks), *([(options.nodes, 1)] if options.nodes > 1 else [])):
        say(f"measuring: containers: {node_count}, ranks in each: {ranks_per_node}")
        spec = ClusterSpec(CLUSTER, image.id, node_count, ranks_per_node, options.command)
        documents.append(measure(spec, engine))
    document = collectives_report.merge(documents, output.facts(engine, image))
    has_picture = any(row["collective"] == PLOTTED for row in document["rows"])
    draw = partial(plots.collectives, collective=PLOTTED) if has_picture else None
    output.publish("collectives", document, folder, collectives_report.table, draw, options.json)


def measure(spec: ClusterSpec, engine: Engine) -> dict[str, Any]:
    """Run a cluster whose command is the image's `bench`, and return the document that rank 0 wrote.

    Raises Exit with the cluster's exit code if it fails.
    """
    shared = run.writable_folder(run.folder_of(spec.name) / "output")
    result = shared / "result.json"
    result.unlink(missing_ok=True)
    measured = replace(
        spec,
        command=(*spec.command, f"--output=/output/{result.name}"),
        mounts=(Mount(shared, contract.OUTPUT, read_only=False),),
        offline=True,
    )
    outcome = run.run(measured, engine, shown=sys.stderr.buffer)
    if outcome.exit_code != 0:
        raise Exit(f"bench failed: the cluster ended with exit code {outcome.exit_code}", code=outcome.exit_code)
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return document
