"""The order of the rows: steps of similar lengths, and batches of similar token counts. Pure."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from typing import Any

# Rows are sorted within blocks of this many steps, so that steps differ between epochs.
_STEPS_SORTED = 50


def order(lengths: Sequence[int], rows_per_step: int, seed: int, epoch: int) -> list[int]:
    """The order of the rows in an epoch, the same on every rank.

    `rows_per_step`: of all ranks and accumulated batches. All rows of a step have similar lengths, because the
    ranks wait for the slowest one. The step with the longest rows comes first, so that a lack of memory shows at
    once. An incomplete step comes last.
    """
    chance = random.Random(f"{seed} {epoch}")  # noqa: S311 - an order, not a secret
    rows = list(range(len(lengths)))
    chance.shuffle(rows)
    size = rows_per_step * _STEPS_SORTED
    blocks = [
        sorted(rows[begin : begin + size], key=lambda row: -lengths[row]) for begin in range(0, len(rows), size)
    ]
    steps = [
        block[begin : begin + rows_per_step] for block in blocks for begin in range(0, len(block), rows_per_step)
    ]
    rest = steps.pop() if steps and len(steps[-1]) < rows_per_step else []
    chance.shuffle(steps)
    if steps:
        longest = max(range(len(steps)), key=lambda step: lengths[steps[step][0]])
        steps[0], steps[longest] = steps[longest], steps[0]
    return [row for step in [*steps, rest] for row in step]


class GroupedByLength:
    """A sampler of row numbers. accelerate sets its epoch, so that a resumed run finds the same order."""

    def __init__(self, lengths: Sequence[int], rows_per_step: int, seed: int) -> None:
        self._lengths = lengths
        self._rows_per_step = rows_per_step
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(order(self._lengths, self._rows_per_step, self._seed, self._epoch))


def balance(rows: Sequence[int], lengths: Sequence[int], rows_per_batch: int) -> list[int]:
    """The rows of a step, ordered so that each batch of `rows_per_batch` of them has about as many tokens.

    The longest remaining row goes to the batch with the fewest tokens (Graham 1969) that is not full. A step whose
    last batch is incomplete is not changed.
    """
    if len(rows) % rows_per_batch:
        return list(rows)
    batches: list[list[int]] = [[] for _ in range(len(rows) // rows_per_batch)]
    open_batches = [(0, number) for number in range(len(batches))]
    for row in sorted(rows, key=lambda row: -lengths[row]):
        tokens, number = heapq.heappop(open_batches)
        batches[number].append(row)
        if len(batches[number]) < rows_per_batch:
            heapq.heappush(open_batches, (tokens + lengths[row], number))
    return [row for batch in batches for row in batch]


class Balanced:
    """The order of another sampler, with the rows of each step balanced between its batches.

    Consecutive batches go to consecutive ranks, so the ranks of a step wait less for each other. A step has the
    same rows as before, and each batch as many rows, so the gradient is the same.
    """

    def __init__(self, sampler: Any, lengths: Sequence[int], rows_per_batch: int, batches_per_step: int) -> None:
        """`sampler`: row numbers, the same order on every rank."""
        self._sampler = sampler
        self._lengths = lengths
        self._rows_per_batch = rows_per_batch
        self._rows_per_step = rows_per_batch * batches_per_step

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        rows = list(self._sampler)
        for begin in range(0, len(rows), self._rows_per_step):
            yield from balance(rows[begin : begin + self._rows_per_step], self._lengths, self._rows_per_batch)
