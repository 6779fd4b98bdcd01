"""The document and the table of a measurement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from entrypoints.bench import bounds
from entrypoints.bench.cases import Case, quartiles, readable


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
    rows: Sequence[Mapping[str, Any]], samples: Mapping[str, Sequence[float]], nodes: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """`rows` with their share of the ceiling, and the ceilings from their `samples` in GB/s."""
    ceilings = [
        {
            "where": bounds.place(nodes),
            "what": name,
            "gbytes_per_s": _digits(quartiles(values)[1]),
            "gbytes_per_s_quartiles": [_digits(quartiles(values)[0]), _digits(quartiles(values)[2])],
            "samples": len(values),
        }
        for name, values in samples.items()
    ]
    speeds = {name: quartiles(values)[1] for name, values in samples.items()}
    return {**facts, "rows": [_with_share(row, speeds, nodes) for row in rows], "ceilings": ceilings}


def _with_share(row: Mapping[str, Any], speeds: Mapping[str, float], nodes: int) -> dict[str, Any]:
    limit = bounds.limit(row["collective"], row["ranks"], nodes)
    if limit is None:
        return {**row, "ceiling": None, "ceiling_factor": None, "ceiling_share": None}
    name, factor = limit
    share = bounds.share(row["algbw_gbytes_per_s"], row["bytes"], speeds[name], factor)
    share = None if share is None else round(share, 3)
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
    lines += [f"ceiling {ceiling['what']}: {ceiling['gbytes_per_s']:.2f} GB/s" for ceiling in document["ceilings"]]
    return "\n".join(lines)


def _digits(value: float) -> float:
    """Four significant digits: the spread is larger than what is cut off."""
    return float(f"{value:.4g}")
