"""The document and the table of a measurement, with each row's share of the hardware's limit. Pure.

The limit is the minimum that a collective must transfer, at the speed of the hardware. n ranks, a complete
tensor of N bytes (all_gather's output, reduce_scatter's input): the bandwidth N / time is at most the ceiling /
`factor`.

Over a network, with one rank on each node, every rank must send `factor * N` bytes and receive the same number.

    all_reduce      2 (n-1)/n   Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
                                workstations", J. Parallel Distrib. Comput. 69 (2009)
    all_gather      (n-1)/n     a rank receives the other ranks' parts, and sends its own part at least once
    reduce_scatter  (n-1)/n     the reverse
    broadcast       1           one way: every rank but the root receives N

The ceiling is a TCP stream between two nodes, in both directions at the same time if a rank sends and receives.

In one node's memory, a rank must read its input and write its output once. Copying N bytes reads N and writes
N, so `factor` is (input + output) / 2 N. Data between the ranks may stay in the processor's caches and is not
counted, so no algorithm exceeds this limit.

    all_reduce      1               N in, N out
    all_gather      (1 + 1/n) / 2   N/n in, N out
    reduce_scatter  (1 + 1/n) / 2   N in, N/n out
    broadcast       1/2             the root reads N, the other ranks write N

The ceiling is a memory copy by one core of each rank, on all ranks at once, within a buffer of the tensor's
size: the caches help the copy and the collective equally.

Both limits depend on the hardware only. A backend that uses another path (gloo uses TCP within a node too) has
the same limits. `./inv bench collectives` prints the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from cpu_train_stack.bench.cases import Case, digits, quartiles, readable

MEMORY_COPY = "memory-copy"
TCP_ONE_WAY = "tcp-one-way"
TCP_BOTH_WAYS = "tcp-both-ways"
# torch's own process group on CPUs, with which other backends are compared: in rows with the same _CASE.
BASELINE = "gloo"
_CASE = ("where", "collective", "dtype", "bytes")

# Latency dominates for smaller tensors: they have no share.
SMALLEST_SHARE = 1 << 20
# By a ceiling's name and the size in bytes that the ceiling is for; None: for all sizes.
Samples = Mapping[tuple[str, Optional[int]], Sequence[float]]


def place(nodes: int) -> str:
    """The `where` of a row: "one-container", "two-containers", "3-containers"."""
    return {1: "one-container", 2: "two-containers"}.get(nodes, f"{nodes}-containers")


def limit(collective: str, ranks: int, nodes: int) -> tuple[str, float] | None:
    """The ceiling's name and the factor.

    None for one rank, which transfers nothing, and for several nodes with several ranks each, whose collectives
    use memory and network.
    """
    if ranks < 2 or nodes not in (1, ranks):
        return None
    part = 1 / ranks
    if nodes == 1:
        factors = {"all_reduce": 1.0, "broadcast": 0.5}
        return MEMORY_COPY, factors.get(collective, (1 + part) / 2)
    if collective == "broadcast":
        return TCP_ONE_WAY, 1.0
    return TCP_BOTH_WAYS, (1 - part) * (2 if collective == "all_reduce" else 1)


def share(algbw: float, ceiling: float, factor: float) -> float:
    """`algbw` as a fraction of its limit. `algbw` and `ceiling` are in GB/s."""
    return algbw * factor / ceiling


def row(
    case: Case, size: int, backend: str, ranks: int, nodes: int, seconds: tuple[float, float, float]
) -> dict[str, Any]:
    """One backend's row. `size`: of the complete tensor, in bytes. `seconds`: the quartiles of a call."""
    low, middle, high = seconds
    return {
        "where": place(nodes),
        "backend": backend,
        "collective": case.collective,
        "dtype": case.dtype,
        "bytes": size,
        "ranks": ranks,
        "latency_us": round(middle * 1e6, 2),
        "latency_us_quartiles": [round(low * 1e6, 2), round(high * 1e6, 2)],
        "algbw_gbytes_per_s": digits(size / middle / 1e9),
    }


def document(
    rows: Sequence[Mapping[str, Any]], samples: Samples, nodes: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """`rows` with their share of the ceiling, and the ceilings. `samples`: the ceilings' measurements in GB/s."""
    ceilings = []
    for (name, size), values in sorted(samples.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        low, middle, high = map(digits, quartiles(values))
        ceiling = {"where": place(nodes), "what": name, "bytes": size, "gbytes_per_s": middle}
        ceilings.append({**ceiling, "gbytes_per_s_quartiles": [low, high], "samples": len(values)})
    shares = [_with_share(row, samples, nodes) for row in rows]
    return {**facts, "rows": shares, "ceilings": ceilings, "speedups": speedups(rows)}


def speedups(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The speed-up of each backend over BASELINE, for each case with both."""
    baseline = {case_of(row): row["latency_us"] for row in rows if row["backend"] == BASELINE}
    return [
        {
            **{name: row[name] for name in (*_CASE, "backend")},
            "speedup": round(baseline[case_of(row)] / row["latency_us"], 2),
        }
        for row in rows
        if row["backend"] != BASELINE and case_of(row) in baseline
    ]


def _with_share(row: Mapping[str, Any], samples: Samples, nodes: int) -> dict[str, Any]:
    found = limit(row["collective"], row["ranks"], nodes)
    if found is None:
        return {**row, "ceiling": None, "ceiling_factor": None, "ceiling_share": None}
    name, factor = found
    fraction = None
    values = samples.get((name, row["bytes"] if name == MEMORY_COPY else None))
    if values and row["bytes"] >= SMALLEST_SHARE:
        fraction = round(share(row["algbw_gbytes_per_s"], quartiles(values)[1], factor), 3)
    return {**row, "ceiling": name, "ceiling_factor": round(factor, 4), "ceiling_share": fraction}


def table(document: Mapping[str, Any]) -> str:
    """A line of at most 80 characters for each row and each ceiling."""
    ratios = {(case_of(one), one["backend"]): f"{one['speedup']:.1f}x" for one in document["speedups"]}
    line = "{:<15}{:<9}{:>8}  {:<6}{:>13}{:>8}{:>9}{:>9}"
    lines = [line.format("collective", "type", "size", "backend", "us", "GB/s", f"vs. {BASELINE}", "ceiling")]
    for row in document["rows"]:
        share = "" if row["ceiling_share"] is None else f"{row['ceiling_share']:.0%}"
        ratio = ratios.get((case_of(row), row["backend"]), "")
        case = (row["collective"], row["dtype"], readable(row["bytes"]), row["backend"])
        lines.append(
            line.format(*case, f"{row['latency_us']:,.1f}", f"{row['algbw_gbytes_per_s']:.3g}", ratio, share)
        )
    for ceiling in document["ceilings"]:
        size = f" of {readable(ceiling['bytes'])}" if ceiling["bytes"] else ""
        lines.append(f"ceiling {ceiling['what']}{size}: {ceiling['gbytes_per_s']:.2f} GB/s")
    return "\n".join(lines)


def case_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row has in common with the same case of another backend."""
    return tuple(row[name] for name in _CASE)
