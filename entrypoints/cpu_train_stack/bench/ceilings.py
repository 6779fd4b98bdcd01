"""Measures the hardware's limits for collectives, in blocks between the rows, under the same conditions."""

from __future__ import annotations

from typing import Callable

import torch.distributed as dist

from cpu_train_stack.bench import transfers
from cpu_train_stack.bench.cases import BLOCK_SECONDS
from cpu_train_stack.bench.measure import slowest
from cpu_train_stack.bench.report import MEMORY_COPY, SMALLEST_SHARE, TCP_BOTH_WAYS, TCP_ONE_WAY
from cpu_train_stack.group.create import gather
from cpu_train_stack.machine import network
from cpu_train_stack.placement.detect import DistributedEnvironment

BLOCKS = 3
_MOST_COPIES = 1000
_FIRST_BYTES = 4 << 20
_LARGEST_BYTES = 1 << 30


class Ceilings:
    """`samples`: the blocks of each ceiling so far, in GB/s, by name and size of a copy; equal on every rank.

    Every method is a collective. With several nodes, rank 0 and the first rank of another node hold a TCP stream.
    """

    def __init__(self, environment: DistributedEnvironment, nodes_of_ranks: list[int]) -> None:
        others = [rank for rank, node in enumerate(nodes_of_ranks) if node != nodes_of_ranks[0]]
        self._rank = environment.rank
        self._several_nodes = bool(others)
        self._stream = _open_stream(environment, others[0]) if others else None
        self._bytes = _FIRST_BYTES
        if others:  # measured once: the bytes that a block transfers
            self._bytes = max(_FIRST_BYTES, min(_LARGEST_BYTES, int(BLOCK_SECONDS * self._both_ways() * 1e9)))
        self.samples: dict[tuple[str, int | None], list[float]] = {}

    def sample(self, size: int) -> None:
        """Measure BLOCKS more blocks of each ceiling; copies only if rows of `size` bytes have a share."""
        blocks: dict[tuple[str, int | None], Callable[[], float]] = {}
        if size >= SMALLEST_SHARE:
            blocks[MEMORY_COPY, size] = _copy_block(size)
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
        """GB/s in each direction, at the same time."""
        return self._transfer(sends=True, receives=True)

    def _transfer(self, sends: bool, receives: bool) -> float:
        dist.barrier()
        seconds = 0.0
        if self._stream:
            seconds = self._stream.transfer(sends * self._bytes, receives * self._bytes)
        return self._bytes / slowest(seconds) / 1e9


def _copy_block(size: int) -> Callable[[], float]:
    """A function that copies on all ranks at once, and returns the GB/s of the slowest rank."""
    copier = transfers.Copier(size)
    dist.barrier()
    times = max(1, min(_MOST_COPIES, round(BLOCK_SECONDS / slowest(copier.copy(1)))))

    def block() -> float:
        dist.barrier()
        return times * copier.copied / slowest(copier.copy(times)) / 1e9

    return block


def _open_stream(environment: DistributedEnvironment, peer: int) -> transfers.TransferStream | None:
    """The stream between rank 0 and `peer`; None on the other ranks. A collective."""
    listener = None
    if environment.rank == 0:
        listener = transfers.listen(network.source_address(network.resolve(environment.master_addr)))
    address = gather(listener.getsockname() if listener else None)[0]
    if listener:
        return transfers.accept(listener)
    return transfers.connect(address[0], address[1]) if environment.rank == peer else None
