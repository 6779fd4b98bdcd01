"""Measurements as pictures. matplotlib is imported where it is used: it takes a second."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.bench_report import SHORT, Document, lines, places, readable, title
from tooling.paths import CACHE

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
        for label, value in ceilings(document, where, collective):
            below.axhline(value, color=GREY, linestyle=":", linewidth=1.2)
            below.annotate(
                f"{label}: {value:.2g}",
                (0.01, value),
                xycoords=("axes fraction", "data"),
                xytext=(0, 2),
                textcoords="offset points",
                color=GREY,
                fontsize=9,
            )
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


def ceilings(document: Document, where: str, collective: str) -> list[tuple[str, float]]:
    """The lines above a place's curves, in GB/s: what was measured, and what that leaves for the collective."""
    measured = {c["what"]: c["gbytes_per_s"] for c in document["ceilings"] if c["where"] == where}
    result = [(CEILINGS.get(name, name), value) for name, value in measured.items()]
    for row in document["rows"]:
        if (row["where"], row["collective"]) == (where, collective) and row["ceiling_factor"] not in (None, 1):
            factor = row["ceiling_factor"]
            return [*result, (f"{collective} at most, that / {factor:g}", measured[row["ceiling"]] / factor)]
    return result
