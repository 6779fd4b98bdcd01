"""Which kind of label a column has, and the order of the names."""

from __future__ import annotations

from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import labels
from cpu_train_stack.train.data.labels import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from cpu_train_stack.train.data.tables import DataTable


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
        ([0.5, 10**400], SINGLE_LABEL),  # more than a float holds
    ],
)
def test_numbers_with_fractions_are_predicted_as_numbers_and_lists_are_sets(
    values: list[Any], problem_type: str
) -> None:
    assert labels.infer_problem_type(values) == problem_type


def test_label_names_are_sorted_as_numbers_if_all_are() -> None:
    assert labels.label_names(["10", "2", "-1", "2"]) == ["-1", "2", "10"]
    assert labels.label_names(["b", "10", "a"]) == ["10", "a", "b"]
    assert labels.label_names(["²", "1"]) == ["1", "²"]
    assert labels.label_names(["--1", "1"]) == ["--1", "1"]
    assert labels.label_names(["1", "01"]) == labels.label_names(["01", "1"])


@pytest.mark.parametrize(
    "values",
    [[[0, 1, 0], [1, 0, 0]], [[1, 0], [0, 1]], [[0.0, 0.0]], [[True, False, True]]],
    ids=["three classes", "two classes", "fractions", "truth values"],
)
def test_a_zero_or_one_for_each_class_is_refused_where_names_are_expected(values: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"row 1: column 'label' holds .* expected the names of the row's labels"):
        labels.read(DataTable("x.jsonl", {"label": values}), "label", values, MULTI_LABEL)


@pytest.mark.parametrize("values", [[[0], [1]], [[0, 1], [1], []], [[0, 1]], [[0, 1, 0], [2, 1, 0]]])
def test_zero_and_one_may_be_names_of_labels(values: list[Any]) -> None:
    labels.read(DataTable("x.jsonl", {"label": values}), "label", values, MULTI_LABEL)
