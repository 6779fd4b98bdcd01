"""Measurements as pictures. matplotlib is imported where it is used: it takes a second."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.basis.paths import CACHE
from tooling.bench.report import SHORT, Document, lines, places, readable, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind tell apart.
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
# By order; a level line and another at the same height are both to be seen.
CEILING_STYLES = ((0, (1, 1.5)), (0, (6, 3)), (0, (4, 2, 1, 2)))


def collectives(document: Document, collective: str, file: Path) -> None:
    """A PNG with a column for each place: time of a call above, bandwidth with its ceilings below."""
    os.environ.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))  # its font cache, otherwise in the home
    from matplotlib.figure import Figure

    columns = places(document)
    figure = Figure(figsize=(1.5 + 5.5 * len(columns), 8.5), dpi=120, layout="constrained")
    grid = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    axes: list[list[Axes]] = [list(row) for row in grid]
    for above, below, where in zip(*axes, columns, strict=True):
        above.set_title(title(document, where))
        for line in lines(document, where, collective):
            style, marker = STYLES.get(line.dtype, OTHER_STYLE)
            sizes, times, speeds = zip(*line.points, strict=True)
            for axis, values in ((above, times), (below, speeds)):
                axis.plot(
                    sizes,
                    values,
                    color=COLOURS.get(line.backend, OTHER_COLOUR),
                    linestyle=style,
                    marker=marker,
                    label=f"{line.backend} {SHORT.get(line.dtype, line.dtype)}",
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
    """A place's ceilings as a name and points (bytes, GB/s) by rising size, one for all sizes as a level line."""
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
    """`1.5`, or `89 to 11` from the smallest size to the largest."""
    values = [f"{value:.2g}" for _size, value in sorted(curve)]
    return " to ".join(dict.fromkeys((values[0], values[-1])))
