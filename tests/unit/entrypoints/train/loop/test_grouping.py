"""Rows of similar length share a step; every row occurs once; the longest rows come first; ranks are balanced."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.train.loop.grouping import Balanced, GroupedByLength, balance, order

CHANCE = random.Random(5)
LENGTHS = [CHANCE.randint(4, 128) for _ in range(1000)]


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


def tokens(rows: list[int], rows_per_batch: int) -> list[int]:
    return [sum(LENGTHS[row] for row in rows[i : i + rows_per_batch]) for i in range(0, len(rows), rows_per_batch)]


@given(st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_balanced_step_has_the_same_rows_in_full_batches(
    batch: int, batches: int, chance: random.Random
) -> None:
    rows = chance.sample(range(1000), batch * batches)
    balanced = balance(rows, LENGTHS, batch)
    assert sorted(balanced) == sorted(rows)
    if batch > 1:
        found = tokens(balanced, batch)
        assert max(found) - min(found) <= max(LENGTHS[row] for row in rows)


@pytest.mark.parametrize(("ranks", "before", "after"), [(2, 1.05, 1.002), (4, 1.1, 1.004), (8, 1.15, 1.01)])
def test_balanced_ranks_have_nearly_the_same_number_of_tokens(ranks: int, before: float, after: float) -> None:
    def longest(rows: list[int]) -> float:
        found = tokens(rows, 16)
        return max(found) * ranks / sum(found)

    steps = [CHANCE.sample(range(1000), 16 * ranks) for _ in range(50)]
    assert sum(map(longest, steps)) / 50 > before
    assert sum(longest(balance(step, LENGTHS, 16)) for step in steps) / 50 < after


def test_an_incomplete_step_is_not_balanced() -> None:
    rows = [3, 1, 2, 9, 7]
    assert balance(rows, LENGTHS, 2) == rows
    assert balance([], LENGTHS, 2) == []


def test_the_balanced_sampler_keeps_the_steps_of_the_other() -> None:
    inner = GroupedByLength(LENGTHS, 24, seed=1)
    sampler = Balanced(inner, LENGTHS, rows_per_batch=4, batches_per_step=6)
    sampler.set_epoch(2)
    expected = order(LENGTHS, 24, seed=1, epoch=2)
    found = list(sampler)
    assert len(sampler) == len(found) == 1000
    assert found != expected
    for begin in range(0, 1000, 24):
        assert sorted(found[begin : begin + 24]) == sorted(expected[begin : begin + 24])
    Balanced(range(3), LENGTHS, 1, 3).set_epoch(1)  # a sequential sampler has no epochs
