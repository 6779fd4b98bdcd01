"""Pictures of measurements. matplotlib, whose import takes a second, is imported only to draw."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import BY_NAME
from benchmarks.split import CLASSES
from cpu_train_stack.bench.cases import readable
from tooling.basis.figures import Row
from tooling.basis.paths import CACHE
from tooling.bench.report import Document

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The collective in the picture: DDP calls it in every step. The table has all collectives.
PLOTTED = "all_reduce"
# The "backend" of steps without an exchange of gradients.
APART = "none"
# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = {"ccl": "#0072b2", "gloo": "#d55e00", APART: "#009e73"}
CLASS_COLOURS = dict(zip(CLASSES, ("#0072b2", "#56b4e9", "#e69f00", "#009e73", "#d55e00", "#bbbbbb"), strict=True))
TYPES = {"float32": ("fp32", "-", "o"), "bfloat16": ("bf16", "--", "s")}
CEILINGS = {
    "memory-copy": "memory copy of one core",
    "tcp-one-way": "TCP stream, one way",
    "tcp-both-ways": "TCP stream, each way at once",
}
GREY = "#444444"
# In the order of the ceilings. Two lines at the same height remain visible.
CEILING_STYLES = ((0, (1, 1.5)), (0, (6, 3)), (0, (4, 2, 1, 2)))


def _figure(
    rows: int, columns: int, width: float, height: float, **settings: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of axes. matplotlib's font cache is kept in CACHE, not in the home directory."""
    os.environ.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=110)
    grid = [list(row) for row in figure.subplots(rows, columns, squeeze=False, **settings)]
    for axis in itertools.chain(*grid):
        axis.grid(visible=True, color="#dddddd")
        axis.set_axisbelow(True)
    return figure, grid


def places(document: Document) -> list[str]:
    """The values of `where`, in the order of the rows."""
    return list(dict.fromkeys(row["where"] for row in document["rows"]))


def title(document: Document, where: str) -> str:
    """`two containers, 2 ranks`."""
    ranks = next(row["ranks"] for row in document["rows"] if row["where"] == where)
    return f"{where.replace('-', ' ')}, {ranks} ranks"


def has_collectives(document: Document) -> bool:
    """Whether there is something to draw."""
    return any(row["collective"] == PLOTTED for row in document["rows"])


def curves(document: Document, where: str) -> dict[tuple[str, str], list[Row]]:
    """The rows of PLOTTED at one place, by backend and type, in the order of the size."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(document["rows"], key=lambda row: int(row["bytes"])):
        if (row["where"], row["collective"]) == (where, PLOTTED):
            found.setdefault((row["backend"], row["dtype"]), []).append(row)
    return found


def ceilings(document: Document, where: str) -> list[tuple[str, list[tuple[int, float]]]]:
    """The ceilings of a place: a name and points (bytes, GB/s) in the order of the size.

    A ceiling without a size is a horizontal line.
    """
    sizes = sorted({row["bytes"] for curve in curves(document, where).values() for row in curve})
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


def collectives(document: Document, file: Path) -> None:
    """A PNG with a column for each place: the time of a call above, and the bandwidth with its ceilings below."""
    columns = places(document)
    figure, grid = _figure(2, len(columns), 1.5 + 5.5 * len(columns), 8.5, sharex=True, sharey="row")
    for above, below, where in zip(*grid, columns, strict=True):
        above.set_title(title(document, where))
        for (backend, dtype), curve in curves(document, where).items():
            name, style, marker = TYPES[dtype]
            look: dict[str, Any] = {
                "color": COLOURS.get(backend, COLOURS[APART]),
                "linestyle": style,
                "marker": marker,
            }
            for axis, value in ((above, "latency_us"), (below, "algbw_gbytes_per_s")):
                sizes = [row["bytes"] for row in curve]
                axis.plot(sizes, [row[value] for row in curve], label=f"{backend} {name}", **look)
        for (label, points), pattern in zip(ceilings(document, where), CEILING_STYLES, strict=False):
            below.plot(*zip(*points, strict=True), color=GREY, linestyle=pattern, label=label)
        drawn = [line for line in below.get_lines() if line.get_color() == GREY]
        below.legend(handles=drawn, loc="lower right", title="ceilings")
        below.set_xlabel("size of the tensor")
        above.legend(loc="upper left")
    grid[0][0].set_ylabel(f"time of {PLOTTED}, microseconds")
    grid[1][0].set_ylabel("bandwidth (size / time), GB/s")
    ticks = sorted({row["bytes"] for row in document["rows"] if row["collective"] == PLOTTED})
    for axis in itertools.chain(*grid):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(ticks, [readable(size) for size in ticks], rotation=30, ha="right")
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    figure.suptitle(f"{PLOTTED}: {_machine(document)}")
    figure.savefig(file)


def _machine(document: Document) -> str:
    return f"{document['cpu']}, torch {document['torch']}, {document['date'][:10]}"


def model(document: Document) -> str:
    """The model and the batch of `./inv bench scaling`."""
    parameters = document["gradient_bytes"] / 4e6
    batch = f"{document['batch']} x {document['length']} tokens per node and step"
    return f"encoder of {parameters:.0f} M parameters, fp32, {batch}"


def scaling(document: Document, file: Path) -> None:
    """A PNG: the speed-up and the ideal on the left, the efficiency and the predictions on the right."""
    figure, [[left, right]] = _figure(1, 2, 11, 5)
    nodes = sorted({row["nodes"] for row in document["rows"]})
    alone = next(row for row in document["rows"] if row["nodes"] == 1 and row["backend"] == APART)
    left.plot(nodes, nodes, color=GREY, linestyle=":", label="ideal")
    for backend in dict.fromkeys(row["backend"] for row in document["rows"]):
        points = [alone, *(row for row in document["rows"] if row["backend"] == backend and row["nodes"] > 1)]
        counts = [row["nodes"] for row in points]
        look: dict[str, Any] = {"color": COLOURS[backend], "label": "no exchange" if backend == APART else backend}
        speeds = [row["samples_per_second"] / alone["samples_per_second"] for row in points]
        left.plot(counts, speeds, marker="o", **look)
        right.plot(counts, [100 * row["efficiency"] for row in points], marker="o", **look)
        for one in document["predicted"]:
            if one["backend"] == backend:
                low, middle, high = (100 * end for end in sorted([one["efficiency"], *one["efficiency_interval"]]))
                right.errorbar(
                    [one["nodes"]], [middle], yerr=[[middle - low], [high - middle]], color=COLOURS[backend],
                    marker="D", fillstyle="none", capsize=6, linestyle="none",
                    label=f"{backend}, predicted from 1 and 2 nodes",
                )  # fmt: skip
    left.set_ylabel("speed-up")
    right.set_ylabel("efficiency, % of one node")
    right.set_ylim(0, 110)
    for axis in (left, right):
        axis.set_xlabel("nodes")
        axis.set_xticks(nodes)
        axis.legend()
    cores = f"{document['cores_of_each_node']:g} cores per node"
    figure.suptitle(f"{model(document)}\n{cores}, {_machine(document)}", fontsize="medium")
    figure.savefig(file)


def jobs(document: Document) -> list[tuple[str, int]]:
    """The jobs and numbers of ranks of `./inv bench train`, in the order of the rows."""
    return list(dict.fromkeys((row["job"], row["ranks"]) for row in document["rows"]))


def job_title(job: str, ranks: int) -> str:
    """`BERT-base, classification, 128 tokens, batch 32; 2 ranks`."""
    return f"{BY_NAME[job].title}; {ranks} rank{'s' if ranks > 1 else ''}"


def train(document: Document, file: Path) -> None:
    """A PNG with a column for each job and a row for each number of ranks.

    Each recipe has a bar. Its length is the time per sample, divided into the classes of the profile.
    """
    columns, lines = (list(dict.fromkeys(names)) for names in zip(*jobs(document), strict=True))
    figure, grid = _figure(len(lines), len(columns), 1.5 + 5 * len(columns), 1.2 + 2.4 * len(lines))
    for ranks, axes in zip(lines, grid, strict=True):
        for job, axis in zip(columns, axes, strict=True):
            found = [row for row in document["rows"] if (row["job"], row["ranks"]) == (job, ranks)]
            _bars(axis, [row for row in found if row["samples_per_second"]])
            axis.set_title(job_title(str(job), int(ranks)), fontsize=9)
    for axis in grid[-1]:
        axis.set_xlabel("milliseconds per sample")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(CLASSES), fontsize=8)
    figure.suptitle(f"{document['cpu']}, CPUs {document['cpus']}, {document['date'][:10]}", fontsize=10)
    figure.savefig(file)


def pieces(row: Row) -> list[tuple[str, float]]:
    """The milliseconds per sample of each class. Without a profile, all of them are "other"."""
    total = 1000 / row["samples_per_second"]
    split: Mapping[str, float] = row.get("split") or {"other": 1.0}
    return [(name, total * split.get(name, 0.0)) for name in CLASSES]


def _bars(axis: Axes, found: Sequence[Row]) -> None:
    names = [row["recipe"] for row in found]
    lefts = [0.0] * len(found)
    for place, name in enumerate(CLASSES):
        widths = [pieces(row)[place][1] for row in found]
        axis.barh(names, widths, left=lefts, color=CLASS_COLOURS[name], label=name)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    spread: list[Any] = [1000 / speed for row in found for speed in row["samples_per_second_rounds"]]
    owners = [row["recipe"] for row in found for _speed in row["samples_per_second_rounds"]]
    axis.plot(spread, owners, "k|", markersize=7)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
