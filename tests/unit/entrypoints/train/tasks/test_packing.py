"""The packing of rows into sequences."""

from __future__ import annotations

import random

import pytest

from cpu_train_stack.train.tasks import packing


def test_every_row_is_packed_once_and_no_bin_exceeds_its_capacity() -> None:
    chance = random.Random(3)
    lengths = [chance.randint(1, 64) for _ in range(500)]
    found = packing.bins(lengths, 64)
    assert sorted(row for rows in found for row in rows) == list(range(500))
    sums = [sum(lengths[row] for row in rows) for rows in found]
    assert max(sums) <= 64
    assert len(found) <= 1.05 * -(-sum(lengths) // 64)  # random lengths pack nearly without room
    assert found == packing.bins(lengths, 64)


def test_rows_are_packed_as_computed_by_hand() -> None:
    assert [list(rows) for rows in packing.bins([3, 5, 2, 6], 8)] == [[3, 2], [1, 0]]
    assert packing.bins([], 8) == []
    with pytest.raises(ValueError, match="row 0 has 9 tokens"):
        packing.bins([9], 8)
