"""Which kind of label a column has, and the order of the names."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.train.data import labels
from entrypoints.train.data.labels import MULTI_LABEL, REGRESSION, SINGLE_LABEL


@pytest.mark.parametrize(
    ("values", "problem_type"),
    [
        ([0, 1, 2], SINGLE_LABEL),
        ([0.0, 1.0], SINGLE_LABEL),  # integers of a column with a missing value
        (["0", "1.0"], SINGLE_LABEL),
        (["yes", "no"], SINGLE_LABEL),
        (["2.7", "3.1", "none"], SINGLE_LABEL),
        (["1", "nan"], SINGLE_LABEL),
        ([True, 0.5], SINGLE_LABEL),
        ([0, 2.5], REGRESSION),
        (["5.000", " 3.8 "], REGRESSION),
        ([[], ["a"]], MULTI_LABEL),
    ],
)
def test_numbers_with_fractions_are_predicted_as_numbers_and_lists_are_sets(
    values: list[Any], problem_type: str
) -> None:
    assert labels.infer_problem_type(values) == problem_type


def test_label_names_are_sorted_as_numbers_if_all_are() -> None:
    assert labels.label_names(["10", "2", "-1", "2"]) == ["-1", "2", "10"]
    assert labels.label_names(["b", "10", "a"]) == ["10", "a", "b"]
