"""F1 of rows with any number of labels."""

from __future__ import annotations

import numpy
import pytest

from cpu_train_stack.train.scores import glue


@pytest.mark.parametrize(
    ("wanted", "chosen", "f1", "f1_macro"),
    [
        ([[0]] * 9 + [[1]], [[0]] * 10, 0.0, 0.0),
        ([[0], [1], [1]], [[1], [1], [0]], 0.5, 0.5),
        ([[0, 0]] * 3, [[0, 0]] * 3, 0.0, 0.0),
        ([[1, 0], [1, 1], [1, 0]], [[1, 0], [1, 0], [0, 1]], 4 / 7, 0.4),
    ],
    ids=["one label, never chosen", "one label", "no label at all", "two labels"],
)
def test_only_the_labels_of_a_row_count(
    wanted: list[list[int]], chosen: list[list[int]], f1: float, f1_macro: float
) -> None:
    found = glue.f1_of_sets(numpy.array(chosen) > 0, numpy.array(wanted) > 0)
    assert found == {"f1": pytest.approx(f1), "f1_macro": pytest.approx(f1_macro)}
