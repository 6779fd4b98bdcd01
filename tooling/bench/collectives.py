"""`./inv bench collectives`: measures the process group within a container and between containers."""

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cpu_train_stack.bench import cases
from cpu_train_stack.bench.report import BASELINE, case_of
from cpu_train_stack.bench.report import table as image_table
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import MOST_CONTAINERS, MOST_RANKS, check_at_least
from cpu_train_stack.cli.say import say
from tooling.basis.console import JsonOption
from tooling.bench import plots, report, runner
from tooling.bench.report import Document, OutputOption
from tooling.cluster import result
from tooling.cluster.compose import ClusterSpec
from tooling.image.choice import Choice

CLUSTER = "bench"
# Of the pages: a row for each case, with the figures of ccl and the time of gloo at both places.
COLUMNS = {
    "collective": "{collective} {dtype} {bytes:size}",
    "one container: ccl, us": "{one-container[latency_us]}",
    "gloo, us": "{one-container[baseline_us]}",
    "vs. gloo": "{one-container[speedup]}x",
    "of ceiling": "{one-container[ceiling_share]:%}",
    "two containers: ccl, us": "{two-containers[latency_us]}",
    "two: gloo, us": "{two-containers[baseline_us]}",
    "two: vs. gloo": "{two-containers[speedup]}x",
    "two: of ceiling": "{two-containers[ceiling_share]:%}",
}
_LISTS = ("rows", "ceilings", "speedups")


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
        check_at_least("bench: --nodes", self.nodes, 1, MOST_CONTAINERS)
        check_at_least("bench: --ranks", self.ranks, 2, MOST_RANKS)
        report.check_seconds(self.seconds)
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


def run(options: CollectivesOptions) -> None:
    """Measure `ranks` ranks in one container, then `nodes` containers with one rank each.

    Write collectives-TIME.json and .png to the output folder, and print a table or the document. Raises Exit
    with the cluster's exit code if a measurement fails.
    """
    folder = report.folder(options.output)
    engine, image = options.choice.ensure()
    documents = []
    for node_count, ranks_per_node in ((1, options.ranks), *([(options.nodes, 1)] if options.nodes > 1 else [])):
        say(f"measuring: containers: {node_count}, ranks in each: {ranks_per_node}")
        spec = ClusterSpec(CLUSTER, image.id, node_count, ranks_per_node, options.command)
        documents.append(runner.run_cluster(spec, engine))
    with result.understood(runner.output_of(CLUSTER)):
        document = merge(documents, report.facts(engine, image))
        draw = plots.collectives if plots.has_collectives(document) else None
        report.publish("collectives", document, folder, table, draw, options.json)


def merge(documents: Sequence[Document], facts: Mapping[str, Any]) -> dict[str, Any]:
    """One document of all places. The versions come from the first."""
    return {
        **facts,
        **{key: documents[0][key] for key in ("pin", "torch", "cpu")},
        "environment": {document["rows"][0]["where"]: document["environment"] for document in documents},
        **{key: [one for document in documents for one in document[key]] for key in _LISTS},
    }


def rows_of_cases(document: Document) -> list[dict[str, Any]]:
    """A row for each case, with ccl's figures at each place: also the time of gloo, and the speed-up, if known."""
    times = {case_of(row): row["latency_us"] for row in document["rows"] if row["backend"] == BASELINE}
    ratios = {case_of(one): one["speedup"] for one in document["speedups"]}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in document["rows"]:
        if row["backend"] != BASELINE:
            figures = {**row, "baseline_us": times.get(case_of(row)), "speedup": ratios.get(case_of(row))}
            found.setdefault(case_of(row)[1:], dict(row))[row["where"]] = figures
    return list(found.values())


def table(document: Document) -> str:
    """A table for each place, followed by its ceilings."""
    parts = []
    for where in plots.places(document):
        part = {key: [one for one in document[key] if one["where"] == where] for key in _LISTS}
        parts.append(f"{plots.title(document, where)}\n{image_table(part)}\n")
    return "\n".join(parts)
