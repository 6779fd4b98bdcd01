"""Which rows attention computes together. The computation is tested in the image."""

from __future__ import annotations

import pytest

from cpu_train_stack.operators.unpadded import similar


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([7], [(0, 1)]),
        ([8, 8, 8], [(0, 3)]),
        ([100, 80, 50, 49, 25, 24, 1, 1], [(0, 3), (3, 5), (5, 6), (6, 8)]),
    ],
)
def test_rows_that_are_computed_together_are_at_least_half_as_long_as_the_longest(
    lengths: list[int], groups: list[tuple[int, int]]
) -> None:
    assert list(similar(lengths)) == groups
