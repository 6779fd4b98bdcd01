"""A measurement of scaling as a picture. matplotlib is imported where it is used: it takes a second."""

from __future__ import annotations

import os
from pathlib import Path

from tooling.basis.paths import CACHE
from tooling.bench.plots import COLOURS, GREY, OTHER_COLOUR
from tooling.bench.scaling_report import APART, Document, title


def scaling(document: Document, file: Path) -> None:
    """A PNG: speed-up over nodes with the ideal on the left, efficiency with predictions on the right."""
    os.environ.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))  # its font cache, otherwise in the home
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    nodes = sorted({row["nodes"] for row in document["rows"]})
    alone = next(row for row in document["rows"] if row["nodes"] == 1 and row["backend"] == APART)
    left.plot(nodes, nodes, color=GREY, linestyle=":", label="as many times faster as nodes")
    for backend in dict.fromkeys(row["backend"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["backend"] == backend and row["nodes"] > 1]
        colour = COLOURS.get(backend, OTHER_COLOUR)
        label = "each node for itself" if backend == APART else backend
        points = [alone, *rows]
        places = [row["nodes"] for row in points]
        speeds = [row["samples_per_second"] / alone["samples_per_second"] for row in points]
        left.plot(places, speeds, color=colour, marker="o", label=label)
        right.plot(places, [100 * row["efficiency"] for row in points], color=colour, marker="o", label=label)
        for one in document["predicted"]:
            if one["backend"] == backend:
                low, high = (100 * end for end in one["efficiency_interval"])
                middle = 100 * one["efficiency"]
                bars = [[middle - low], [high - middle]]
                right.errorbar(
                    [one["nodes"]], [middle], yerr=bars, color=colour, marker="D", fillstyle="none", capsize=6,
                    linestyle="none", label=f"{backend}, predicted from 1 and 2 nodes",
                )  # fmt: skip
    left.set_ylabel("speed-up")
    right.set_ylabel("efficiency, % of one node")
    right.set_ylim(0, 110)
    for axis in (left, right):
        axis.set_xlabel("nodes")
        axis.set_xticks(nodes)
        axis.grid(visible=True, color="#dddddd")
        axis.legend()
    cores = document["cores_of_each_node"]
    figure.suptitle(
        f"{title(document)}\n{cores:g} cores a node, {document['cpu']}, torch {document['torch']}, "
        f"{document['date'][:10]}",
        fontsize="medium",
    )
    figure.savefig(file)
