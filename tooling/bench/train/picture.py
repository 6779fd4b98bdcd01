"""The picture of `./inv bench train`: the speed of each recipe, and what its steps consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.split import CLASSES
from tooling.bench.output import Document
from tooling.bench.plots import new_figure
from tooling.bench.train.results import Row, places, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = dict(zip(CLASSES, ("#0072b2", "#56b4e9", "#e69f00", "#009e73", "#d55e00", "#bbbbbb"), strict=True))


def draw(document: Document, file: Path) -> None:
    """A PNG with a column for each job and a row for each number of ranks.

    Each recipe has a bar. Its length is the time per sample, divided into the classes of the profile.
    """
    all_places = places(document)
    columns = list(dict.fromkeys(job for job, _ranks in all_places))
    lines = list(dict.fromkeys(ranks for _job, ranks in all_places))
    figure = new_figure(1.5 + 5 * len(columns), 1.2 + 2.4 * len(lines), dpi=100)
    grid: list[list[Axes]] = [list(row) for row in figure.subplots(len(lines), len(columns), squeeze=False)]
    for ranks, axes in zip(lines, grid, strict=True):
        for job, axis in zip(columns, axes, strict=True):
            found = [row for row in document["rows"] if (row["job"], row["ranks"]) == (job, ranks)]
            _bars(axis, [row for row in found if row["samples_per_second"]])
            axis.set_title(title(job, ranks), fontsize=9)
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
        axis.barh(names, widths, left=lefts, color=COLOURS[name], label=name)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    spread: list[Any] = [1000 / speed for row in found for speed in row["samples_per_second_rounds"]]
    owners = [row["recipe"] for row in found for _speed in row["samples_per_second_rounds"]]
    axis.plot(spread, owners, "k|", markersize=7)
    axis.invert_yaxis()
    axis.grid(visible=True, axis="x", color="#dddddd")
    axis.set_axisbelow(True)
