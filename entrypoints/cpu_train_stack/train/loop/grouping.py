"""The order of the rows for steps of similar lengths. Pure."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence

# Rows are sorted within blocks of this many steps, so that steps differ between epochs.
_STEPS_SORTED = 50


def order(lengths: Sequence[int], rows_per_step: int, seed: int, epoch: int) -> Iterator[int]:
    """The order of the rows in an epoch, the same on every rank.

    `rows_per_step`: of all ranks and accumulated batches. All rows of a step have similar lengths, because the
    ranks wait for the slowest one. The step with the longest rows comes first, so that a lack of memory shows at
    once. An incomplete step comes last.
    """
    chance = random.Random(f"{seed} {epoch}")  # noqa: S311 - an order, not a secret
    rows = array("i", range(len(lengths)))
    chance.shuffle(rows)
    size = rows_per_step * _STEPS_SORTED
    for begin in range(0, len(rows), size):
        block = sorted(rows[begin : begin + size], key=lambda row: -lengths[row])
        rows[begin : begin + size] = array("i", block)
    rest = len(rows) - len(rows) % rows_per_step
    steps = array("i", range(0, rest, rows_per_step))  # where each step begins
    chance.shuffle(steps)
    if steps:
        longest = max(range(len(steps)), key=lambda step: lengths[rows[steps[step]]])
        steps[0], steps[longest] = steps[longest], steps[0]
    for begin in steps:
        yield from rows[begin : begin + rows_per_step]
    yield from rows[rest:]


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
        return order(self._lengths, self._rows_per_step, self._seed, self._epoch)
