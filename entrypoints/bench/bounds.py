"""What a collective must move at least, and so which share of what the machine can move it reached. Pure.

n ranks, a whole tensor of N bytes (all_gather's output, reduce_scatter's input).

Over a network, one rank on each node. Every rank must send `factor * N` bytes and receive as many:

    all_reduce      2 (n-1)/n   Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
                                workstations", J. Parallel Distrib. Comput. 69 (2009)
    all_gather      (n-1)/n     the others' parts come in, this rank's part leaves once at least
    reduce_scatter  (n-1)/n     the reverse
    broadcast       1           one way only: into each rank but the root

The limit is a TCP stream between two nodes, both ways at once where a rank sends and receives.

In one node's memory. A rank's tensor is its own: another process gets at it by a copy only, made by the kernel
(process_vm_readv) or through a segment that both map, which is longer. Counted are a rank's reads and writes of
memory, where a copy of N bytes is 2 N; `factor` is their sum / 2 N:

    reduce_scatter  fetch (n-1)/n N (read, write); add up: read N, write N/n            (3 - 1/n) / 2
    all_gather      fetch (n-1)/n N, copy the own N/n                                   1
    all_reduce      reduce_scatter, then fetch (n-1)/n N of results                     (5 - 3/n) / 2
    broadcast       fetch N                                                             1

The limit is a copy of memory by one core of each rank, all ranks at once. For two ranks all_reduce's factor is
1.75: it can take no less time than copying 1.75 times its tensor.

That counts every read and write as one of memory. A part that is added up while it is still in a cache costs less,
so this is a yardstick and no wall; the wall is factor 1, since each rank reads and writes its whole tensor.

Both are limits of the place: a backend that goes another way (gloo talks TCP within a node too) has the same.
"""

from __future__ import annotations

MEMORY_COPY = "memory-copy"
TCP_ONE_WAY = "tcp-one-way"
TCP_BOTH_WAYS = "tcp-both-ways"

# The copy is measured from memory to memory: it limits tensors that do not stay in the processor's caches.
SMALLEST_SHARE = 16 << 20


def place(nodes: int) -> str:
    """The `where` of a row: "one-container", "two-containers", "3-containers"."""
    return {1: "one-container", 2: "two-containers"}.get(nodes, f"{nodes}-containers")


def limit(collective: str, ranks: int, nodes: int) -> tuple[str, float] | None:
    """The ceiling's name and the factor: bandwidth is at most ceiling / factor.

    None for one rank, which moves nothing, and for several ranks on each of several nodes, whose collectives go
    both ways.
    """
    if ranks < 2 or nodes not in (1, ranks):
        return None
    n = ranks
    if nodes == 1:
        factors = {"all_reduce": (5 - 3 / n) / 2, "reduce_scatter": (3 - 1 / n) / 2}
        return MEMORY_COPY, factors.get(collective, 1.0)
    if collective == "broadcast":
        return TCP_ONE_WAY, 1.0
    return TCP_BOTH_WAYS, (n - 1) / n * (2 if collective == "all_reduce" else 1)


def share(algbw: float, size: int, ceiling: float, factor: float) -> float | None:
    """Which part of the limit `algbw` is, both in GB/s; None for tensors under SMALLEST_SHARE bytes."""
    if size < SMALLEST_SHARE or ceiling <= 0:
        return None
    return algbw * factor / ceiling
