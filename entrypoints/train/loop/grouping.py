"""The order of the rows for steps of similar lengths. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

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
