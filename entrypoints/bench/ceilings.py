"""Measures what limits a collective, in blocks between the rows, so that they see the machine as the rows do."""

from __future__ import annotations

from typing import Any, Callable

import torch.distributed as dist

from entrypoints.bench import stream
from entrypoints.bench.bounds import MEMORY_COPY, SMALLEST_SHARE, TCP_BOTH_WAYS, TCP_ONE_WAY
from entrypoints.bench.cases import BLOCK_SECONDS
from entrypoints.bench.copying import Copier
from entrypoints.machine import network
from entrypoints.placement.detect import DistributedEnvironment

BLOCKS = 3
_MOST_COPIES = 1000
_FIRST_BYTES = 4 << 20
_LARGEST_BYTES = 1 << 30


class Ceilings:
    """`samples`: the blocks of each ceiling so far, in GB/s, the same on every rank, by name and a copy's bytes.

    Every method is a collective. Rank 0 and the first rank of another node, where there is one, hold a TCP stream.
    """

    def __init__(self, environment: DistributedEnvironment, nodes_of_ranks: list[int]) -> None:
        others = [rank for rank, node in enumerate(nodes_of_ranks) if node != nodes_of_ranks[0]]
        self._rank = environment.rank
        self._several_nodes = bool(others)
        self._stream = _open(environment, others[0]) if others else None
        self._bytes = _FIRST_BYTES
        if others:  # how much to move in a block, learnt once
            self._bytes = max(_FIRST_BYTES, min(_LARGEST_BYTES, int(BLOCK_SECONDS * self._both_ways() * 1e9)))
        self.samples: dict[tuple[str, int | None], list[float]] = {}

    def sample(self, size: int) -> None:
        """BLOCKS more blocks of each, of a copy within a buffer of `size` bytes where shares are told."""
        blocks: dict[tuple[str, int | None], Callable[[], float]] = {}
        if size >= SMALLEST_SHARE:
            blocks[MEMORY_COPY, size] = _copying(size)
        if self._several_nodes:
            blocks[TCP_ONE_WAY, None] = self._one_way
            blocks[TCP_BOTH_WAYS, None] = self._both_ways
        for _ in range(BLOCKS):
            for key, block in blocks.items():
                self.samples.setdefault(key, []).append(block())

    def close(self) -> None:
        if self._stream:
            self._stream.close()

    def _one_way(self) -> float:
        """GB/s from rank 0 to its peer."""
        return self._transfer(sends=self._rank == 0, receives=self._rank != 0)

    def _both_ways(self) -> float:
        """GB/s each way, both at once."""
        return self._transfer(sends=True, receives=True)

    def _transfer(self, sends: bool, receives: bool) -> float:
        dist.barrier()
        seconds = 0.0
        if self._stream:
            seconds = self._stream.transfer(sends * self._bytes, receives * self._bytes)
        return self._bytes / slowest(seconds) / 1e9


def _copying(size: int) -> Callable[[], float]:
    """A block of copies: GB/s of the slowest rank, all copying at once."""
    copier = Copier(size)
    dist.barrier()
    times = max(1, min(_MOST_COPIES, round(BLOCK_SECONDS / slowest(copier.copy(1)))))

    def block() -> float:
        dist.barrier()
        return times * copier.copied / slowest(copier.copy(times)) / 1e9

    return block


def everyone(value: Any) -> list[Any]:
    """Every rank's value, by rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def slowest(seconds: float) -> float:
    """The longest of all ranks."""
    return float(max(everyone(seconds)))


def _open(environment: DistributedEnvironment, peer: int) -> stream.Stream | None:
    """The stream between rank 0 and `peer`; None on the other ranks. A collective."""
    listener = None
    if environment.rank == 0:
        listener = stream.listen(network.source_address(network.resolve(environment.master_addr)))
    address = everyone(listener.getsockname() if listener else None)[0]
    if listener:
        return stream.accept(listener)
    return stream.connect(address[0], address[1]) if environment.rank == peer else None
