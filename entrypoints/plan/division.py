"""Dividing a node's cores among its ranks: equal shares, within a NUMA node and a socket where it can be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

from entrypoints.machine.facts import Core

# Crossing from one socket to another is slower than crossing between two NUMA nodes of one socket.
_SOCKET_COST = 1000
_T = TypeVar("_T")


def divide(items: Sequence[_T], parts: int, index: int) -> Sequence[_T]:
    """The `index`-th of `parts` contiguous shares of `items`, whose sizes differ by one at most."""
    size, longer = divmod(len(items), parts)
    start = index * size + min(index, longer)
    return items[start : start + size + (index < longer)]


def shares(cores: Sequence[Core], ranks: int) -> list[Sequence[Core]]:
    """`cores`, in Topology's order, in contiguous shares whose sizes differ by one core at most.

    Ranks wait for each other in every step, so equal shares come first. Where some are one core longer, those are
    chosen with which the fewest shares reach over a socket's or a NUMA node's end. Needs a core for each rank.
    """
    size, longer = divmod(len(cores), ranks)
    sockets = list(accumulate((a.socket != b.socket for a, b in zip(cores, cores[1:])), initial=0))
    nodes = list(accumulate((a.node != b.node for a, b in zip(cores, cores[1:])), initial=0))

    def cost(start: int, end: int) -> int:
        return _SOCKET_COST * (sockets[end - 1] - sockets[start]) + nodes[end - 1] - nodes[start]

    # best[k]: the cheapest way so far with k longer shares, as (cost, (sizes before, 1 if the last is longer)).
    best: dict[int, tuple[int, Any]] = {0: (0, None)}
    for rank in range(ranks):
        after: dict[int, tuple[int, Any]] = {}
        for extra, (spent, chosen) in best.items():
            start = rank * size + extra
            for more in (1, 0):  # the first of equals: longer shares come first, as in `divide`
                if extra + more > longer or longer - extra - more > ranks - rank - 1:
                    continue
                way = (spent + cost(start, start + size + more), (chosen, more))
                if extra + more not in after or way[0] < after[extra + more][0]:
                    after[extra + more] = way
        best = after
    sizes: list[int] = []
    chosen = best[longer][1]
    while chosen:
        chosen, more = chosen
        sizes.insert(0, size + more)
    ends = list(accumulate(sizes))
    return [cores[start:end] for start, end in zip([0, *ends], ends)]
