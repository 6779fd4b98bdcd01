"""Rows of similar length share a step; every row occurs once; the longest rows come first."""

from __future__ import annotations

import random

import pytest

from cpu_train_stack.train.loop import grouping
from cpu_train_stack.train.loop.grouping import GroupedByLength

CHANCE = random.Random(5)
LENGTHS = [CHANCE.randint(4, 128) for _ in range(1000)]


def order(lengths: list[int], rows_per_step: int, seed: int, epoch: int) -> list[int]:
    return list(grouping.order(lengths, rows_per_step, seed, epoch))


def padded(lengths: list[int], rows: list[int], together: int) -> int:
    steps = [[lengths[row] for row in rows[begin : begin + together]] for begin in range(0, len(rows), together)]
    return sum(max(step) * len(step) for step in steps)


@pytest.mark.parametrize("together", [8, 16, 24, 2000])
def test_every_row_occurs_once_and_the_longest_comes_first(together: int) -> None:
    rows = order(LENGTHS, together, seed=1, epoch=0)
    assert sorted(rows) == list(range(1000))
    assert LENGTHS[rows[0]] == max(LENGTHS)


def test_grouping_removes_nearly_all_padding() -> None:
    useful = sum(LENGTHS)
    assert padded(LENGTHS, order(LENGTHS, 8, seed=1, epoch=0), 8) < 1.05 * useful
    assert padded(LENGTHS, list(range(1000)), 8) > 1.5 * useful


def test_epochs_and_seeds_differ_and_ranks_do_not() -> None:
    first = order(LENGTHS, 8, seed=1, epoch=0)
    assert first == order(LENGTHS, 8, seed=1, epoch=0)
    assert first != order(LENGTHS, 8, seed=1, epoch=1)
    assert first != order(LENGTHS, 8, seed=2, epoch=0)


def test_an_incomplete_step_is_last() -> None:
    rows = order(LENGTHS[:21], 8, seed=1, epoch=0)
    assert max(LENGTHS[row] for row in rows[16:]) <= min(LENGTHS[row] for row in rows[:16])
    assert order([], 8, seed=1, epoch=0) == []


def test_the_sampler_follows_the_epoch() -> None:
    sampler = GroupedByLength(LENGTHS, 8, seed=1)
    sampler.set_epoch(3)
    assert list(sampler) == order(LENGTHS, 8, seed=1, epoch=3)
    assert len(sampler) == 1000


def test_the_order_is_that_of_earlier_versions() -> None:
    """A resumed run must find it."""
    lengths = [(number * 7) % 23 for number in range(29)]
    expected = "13 26 3 16 21 11 1 24 12 2 25 15 14 27 4 17 6 19 9 22 28 5 18 8 7 20 10 23 0"
    assert " ".join(map(str, order(lengths, 4, seed=1, epoch=2))) == expected
