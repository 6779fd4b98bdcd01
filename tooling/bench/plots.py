"""Pictures of measurements. matplotlib, whose import takes a second, is imported only to draw."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpu_train_stack.bench.cases import readable
from tooling.basis.paths import CACHE
from tooling.bench import scaling_report
from tooling.bench.collectives_report import SHORT, curves, places, title
from tooling.bench.output import Document

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = {"ccl": "#0072b2", "gloo": "#d55e00"}
OTHER_COLOUR = "#009e73"
STYLES = {"float32": ("-", "o"), "bfloat16": ("--", "s")}
OTHER_STYLE = (":", "^")
CEILINGS = {
    "memory-copy": "memory copy of one core",
    "tcp-one-way": "TCP stream, one way",
    "tcp-both-ways": "TCP stream, each way at once",
}
GREY = "#444444"
# In the order of the ceilings. Two lines at the same height remain visible.
CEILING_STYLES = ((0, (1, 1.5)), (0, (6, 3)), (0, (4, 2, 1, 2)))


def new_figure(width: float, height: float, **settings: Any) -> Figure:
    """An empty figure. matplotlib's font cache is kept in CACHE, not in the home directory."""
    os.environ.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", **settings)


def collectives(document: Document, file: Path, collective: str) -> None:
    """A PNG with a column for each place: the time of a call above, and the bandwidth with its ceilings below."""
    columns = places(document)
    figure = new_figure(1.5 + 5.5 * len(columns), 8.5, dpi=120)
    grid = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    axes: list[list[Axes]] = [list(row) for row in grid]
    for above, below, where in zip(*axes, columns, strict=True):
        above.set_title(title(document, where))
        for (backend, dtype), curve in curves(document, where, collective).items():
            style, marker = STYLES.get(dtype, OTHER_STYLE)
            for axis, value in ((above, "latency_us"), (below, "algbw_gbytes_per_s")):
                axis.plot(
                    [row["bytes"] for row in curve],
                    [row[value] for row in curve],
                    color=COLOURS.get(backend, OTHER_COLOUR),
                    linestyle=style,
                    marker=marker,
                    label=f"{backend} {SHORT.get(dtype, dtype)}",
                )
        for (label, ceiling), pattern in zip(
            ceilings(document, where, collective), itertools.cycle(CEILING_STYLES), strict=False
        ):
            below.plot(*zip(*ceiling, strict=True), color=GREY, linestyle=pattern, label=label)
        drawn = [line for line in below.get_lines() if line.get_color() == GREY]
        below.legend(handles=drawn, loc="lower right", title="ceilings")
        below.set_xlabel("size of the tensor")
        above.legend(loc="upper left")
    for row, label in enumerate((f"time of {collective}, microseconds", "bandwidth (size / time), GB/s")):
        axes[row][0].set_ylabel(label)
    sizes_of_all = sorted({row["bytes"] for row in document["rows"] if row["collective"] == collective})
    for axis in itertools.chain(*axes):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(sizes_of_all, [readable(size) for size in sizes_of_all], rotation=30, ha="right")
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
        axis.grid(visible=True, color="#dddddd")
    figure.suptitle(f"{collective}: {document['cpu']}, torch {document['torch']}, {document['date'][:10]}")
    figure.savefig(file)


def ceilings(document: Document, where: str, collective: str) -> list[tuple[str, list[tuple[int, float]]]]:
    """The ceilings of a place: a name and points (bytes, GB/s) in the order of the size.

    A ceiling without a size is a horizontal line.
    """
    rows = [row for row in document["rows"] if (row["where"], row["collective"]) == (where, collective)]
    sizes = sorted({row["bytes"] for row in rows})
    measured: dict[str, list[tuple[int, float]]] = {}
    for ceiling in document["ceilings"]:
        if ceiling["where"] == where:
            points = [ceiling["bytes"]] if ceiling["bytes"] else [sizes[0], sizes[-1]]
            curve = measured.setdefault(CEILINGS.get(ceiling["what"], ceiling["what"]), [])
            curve += [(size, ceiling["gbytes_per_s"]) for size in points if size in sizes]
    return [(f"{name}: {_range(curve)}", sorted(curve)) for name, curve in measured.items() if curve]


def _range(curve: list[tuple[int, float]]) -> str:
    """`1.5`, or `89 to 11` for the smallest and the largest size."""
    values = [f"{value:.2g}" for _size, value in sorted(curve)]
    return " to ".join(dict.fromkeys((values[0], values[-1])))


def scaling(document: Document, file: Path) -> None:
    """A PNG: the speed-up and the ideal on the left, the efficiency and the predictions on the right."""
    figure = new_figure(11, 5, dpi=120)
    left, right = figure.subplots(1, 2)
    nodes = sorted({row["nodes"] for row in document["rows"]})
    alone = next(row for row in document["rows"] if row["nodes"] == 1 and row["backend"] == scaling_report.APART)
    left.plot(nodes, nodes, color=GREY, linestyle=":", label="ideal")
    for backend in dict.fromkeys(row["backend"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["backend"] == backend and row["nodes"] > 1]
        colour = COLOURS.get(backend, OTHER_COLOUR)
        label = "no exchange" if backend == scaling_report.APART else backend
        points = [alone, *rows]
        counts = [row["nodes"] for row in points]
        speeds = [row["samples_per_second"] / alone["samples_per_second"] for row in points]
        left.plot(counts, speeds, color=colour, marker="o", label=label)
        right.plot(counts, [100 * row["efficiency"] for row in points], color=colour, marker="o", label=label)
        for prediction in document["predicted"]:
            if prediction["backend"] == backend:
                low, high = (100 * end for end in prediction["efficiency_interval"])
                middle = 100 * prediction["efficiency"]
                bars = [[middle - low], [high - middle]]
                right.errorbar(
                    [prediction["nodes"]], [middle], yerr=bars, color=colour, marker="D", fillstyle="none",
                    capsize=6, linestyle="none", label=f"{backend}, predicted from 1 and 2 nodes",
                )  # fmt: skip
    left.set_ylabel("speed-up")
    right.set_ylabel("efficiency, % of one node")
    right.set_ylim(0, 110)
    for axis in (left, right):
        axis.set_xlabel("nodes")
        axis.set_xticks(nodes)
        axis.grid(visible=True, color="#dddddd")
        axis.legend()
    cores = f"{document['cores_of_each_node']:g} cores per node"
    machine = f"{document['cpu']}, torch {document['torch']}, {document['date'][:10]}"
    figure.suptitle(f"{scaling_report.title(document)}\n{cores}, {machine}", fontsize="medium")
    figure.savefig(file)
