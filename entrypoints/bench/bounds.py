"""What a collective must move at least, and so which share of what the machine can move it reached. Pure.

n ranks, a whole tensor of N bytes (all_gather's output, reduce_scatter's input). Bandwidth, N / time, is at most
the ceiling / `factor`.

Over a network, one rank on each node: every rank must send `factor * N` bytes and receive as many.

    all_reduce      2 (n-1)/n   Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
                                workstations", J. Parallel Distrib. Comput. 69 (2009)
    all_gather      (n-1)/n     the others' parts come in, this rank's part leaves once at least
    reduce_scatter  (n-1)/n     the reverse
    broadcast       1           one way only: into each rank but the root

The ceiling is a TCP stream between two nodes, both ways at once where a rank sends and receives.

In one node's memory: a rank must read its input and write its output once; where copying N bytes reads N and
writes N, `factor` is (input + output) / 2 N. What lies between the ranks may stay in the processor's caches and is
not counted, so no way of moving the data gets above it.

    all_reduce      1               N in, N out
    all_gather      (1 + 1/n) / 2   N/n in, N out
    reduce_scatter  (1 + 1/n) / 2   N in, N/n out
    broadcast       1/2             the root reads N, the others write N

The ceiling is a copy of memory by one core of each rank, all ranks at once, within a buffer of the tensor's size:
the caches help both alike.

Both are limits of the place: a backend that goes another way (gloo talks TCP within a node too) has the same.
"""

from __future__ import annotations

MEMORY_COPY = "memory-copy"
TCP_ONE_WAY = "tcp-one-way"
TCP_BOTH_WAYS = "tcp-both-ways"

# Smaller tensors are a matter of latency.
SMALLEST_SHARE = 1 << 20


def place(nodes: int) -> str:
    """The `where` of a row: "one-container", "two-containers", "3-containers"."""
    return {1: "one-container", 2: "two-containers"}.get(nodes, f"{nodes}-containers")


def limit(collective: str, ranks: int, nodes: int) -> tuple[str, float] | None:
    """The ceiling's name and the factor.

    None for one rank, which moves nothing, and for several ranks on each of several nodes, whose collectives go
    both ways.
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
    """Which part of the limit `algbw` is, both in GB/s."""
    return algbw * factor / ceiling
