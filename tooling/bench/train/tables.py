"""The document as tables for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.jobs import BY_NAME
from benchmarks.split import CLASSES
from tooling.bench.train.recipes import BF16, FP32

Document = Mapping[str, Any]
Row = Mapping[str, Any]
_SHORT = {"communication": "comm.", "optimizer": "optim."}


def title(job: str, ranks: int) -> str:
    """`BERT-base, classification, 128 tokens, batch 32; 2 ranks`."""
    return f"{BY_NAME[job].title}; {ranks} rank{'s' if ranks > 1 else ''}"


def places(document: Document) -> list[tuple[str, int]]:
    """The jobs and numbers of ranks, in their order."""
    return list(dict.fromkeys((row["job"], row["ranks"]) for row in document["rows"]))


def table(document: Document) -> RenderableType:
    """For each job and number of ranks two tables, speed and where it goes; then the ceilings."""
    parts: list[RenderableType] = []
    for job, ranks in places(document):
        found = [row for row in document["rows"] if (row["job"], row["ranks"]) == (job, ranks)]
        parts += [Text(title(job, ranks), style="bold"), _speeds(found), Text()]
        if any(row.get("split") for row in found):
            parts += [Text("where the time goes"), _splits(found), Text()]
        parts += [Text(f"{row['recipe']}: {row['reason']}") for row in found if row["reason"]]
        parts += [Text()] if any(row["reason"] for row in found) else []
    for ceiling in document["ceilings"]:
        by_dtype = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in ceiling["gflops_by_dtype"].items())
        parts.append(
            Text(
                f"ceiling of {ceiling['job']}, GFLOP/s: {ceiling['gflops']:.0f}, of all its products "
                f"{ceiling['step_gflops']:.0f} ({by_dtype})"
            )
        )
    before, after = document["load"]
    parts.append(
        Text(f"the machine's load average: {before} before, {after} after; its own part is in the latter")
    )
    return Group(*parts)


def _speeds(found: Iterable[Row]) -> Table:
    made = _plain(
        "recipe", "samples/s", "min to max", "fp32 is", "bf16 is", "CPU s", "GB", "GFLOP/s", "of ceiling"
    )
    for row in found:
        if row["samples_per_second"] is None:
            made.add_row(row["recipe"], "-")
            continue
        speeds = row["samples_per_second_rounds"]
        made.add_row(
            row["recipe"],
            _number(row["samples_per_second"]),
            f"{_number(min(speeds))} to {_number(max(speeds))}",
            *(_times(row["ratio_to"].get(name)) for name in (FP32, BF16)),
            f"{row['cpu_seconds_per_sample']:.3g}",
            f"{row['peak_memory_bytes'] / 1e9:.2f}",
            "" if row["gflops"] is None else f"{row['gflops']:.0f}",
            "" if row["ceiling_share"] is None else f"{row['ceiling_share']:.0%}",
        )
    return made


def _splits(found: Iterable[Row]) -> Table:
    made = _plain("recipe", *(_SHORT.get(name, name) for name in CLASSES))
    for row in found:
        if row.get("split"):
            made.add_row(row["recipe"], *(f"{row['split'][name]:.0%}" for name in CLASSES))
    return made


def _plain(first: str, *others: str) -> Table:
    """Without borders and with one space between its columns, so that it fits a narrow terminal."""
    made = Table(box=None, padding=(0, 1, 0, 0))
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def _number(speed: float) -> str:
    return f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"
