"""The document and the table of a measurement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from entrypoints.bench import bounds
from entrypoints.bench.cases import Case, quartiles, readable

# By a ceiling's name and the size in bytes that it is for, None where it is for all.
Samples = Mapping[tuple[str, Optional[int]], Sequence[float]]


def row(
    case: Case, size: int, backend: str, ranks: int, nodes: int, seconds: tuple[float, float, float]
) -> dict[str, Any]:
    """One backend's row. `size`: of the whole tensor, in bytes; `seconds`: a call's quartiles, from the first."""
    low, middle, high = seconds
    return {
        "where": bounds.place(nodes),
        "backend": backend,
        "collective": case.collective,
        "dtype": case.dtype,
        "bytes": size,
        "ranks": ranks,
        "latency_us": round(middle * 1e6, 2),
        "latency_us_quartiles": [round(low * 1e6, 2), round(high * 1e6, 2)],
        "algbw_gbytes_per_s": _digits(size / middle / 1e9),
    }


def document(
    rows: Sequence[Mapping[str, Any]], samples: Samples, nodes: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """`rows` with their share of the ceiling, and the ceilings from their `samples` in GB/s."""
    ceilings = []
    for (name, size), values in sorted(samples.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        low, middle, high = map(_digits, quartiles(values))
        ceiling = {"where": bounds.place(nodes), "what": name, "bytes": size, "gbytes_per_s": middle}
        ceilings.append({**ceiling, "gbytes_per_s_quartiles": [low, high], "samples": len(values)})
    return {**facts, "rows": [_with_share(row, samples, nodes) for row in rows], "ceilings": ceilings}


def _with_share(row: Mapping[str, Any], samples: Samples, nodes: int) -> dict[str, Any]:
    limit = bounds.limit(row["collective"], row["ranks"], nodes)
    if limit is None:
        return {**row, "ceiling": None, "ceiling_factor": None, "ceiling_share": None}
    name, factor = limit
    share = None
    values = samples.get((name, row["bytes"] if name == bounds.MEMORY_COPY else None))
    if values and row["bytes"] >= bounds.SMALLEST_SHARE:
        share = round(bounds.share(row["algbw_gbytes_per_s"], quartiles(values)[1], factor), 3)
    return {**row, "ceiling": name, "ceiling_factor": round(factor, 4), "ceiling_share": share}


def table(document: Mapping[str, Any]) -> str:
    """For a terminal, a line for each row and each ceiling."""
    lines = [f"{'collective':<15}{'type':<10}{'size':>9}  {'backend':<8}{'us':>11}{'GB/s':>9}  share of ceiling"]
    for row in document["rows"]:
        share = "" if row["ceiling_share"] is None else f"{row['ceiling_share']:.0%} of {row['ceiling']}"
        lines.append(
            f"{row['collective']:<15}{row['dtype']:<10}{readable(row['bytes']):>9}  {row['backend']:<8}"
            f"{row['latency_us']:>11.1f}{row['algbw_gbytes_per_s']:>9.3f}  {share}"
        )
    for ceiling in document["ceilings"]:
        size = f" of {readable(ceiling['bytes'])}" if ceiling["bytes"] else ""
        lines.append(f"ceiling {ceiling['what']}{size}: {ceiling['gbytes_per_s']:.2f} GB/s")
    return "\n".join(lines)


def _digits(value: float) -> float:
    """Four significant digits: the spread is larger than what is cut off."""
    return float(f"{value:.4g}")
