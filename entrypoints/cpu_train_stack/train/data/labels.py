"""The labels of texts, of the three kinds that Hugging Face's models know (`problem_type`). Pure.

One class per row, any number of classes per row, or a number per row.
"""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.tables import DataTable, refuse_unlabelled, short

SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"
# Not str.isdigit: int() refuses digits such as a superscript two.
_INTEGER = re.compile(r"-?[0-9]{1,30}")
_BITS = frozenset({"0", "1", "0.0", "1.0", "False", "True"})


def read(table: DataTable, name: str, values: Iterable[Any], problem_type: str) -> Sequence[Any]:
    """The values of column `name` as labels: names, lists of names, or floats. Raises UsageError for a bad row."""
    return _READERS[problem_type](table, name, values)


def infer_problem_type(values: Iterable[Any]) -> str:
    """Lists are sets of classes. Numbers are to be predicted as numbers if one of them has a fraction."""
    are_numbers, has_fraction = True, False
    for value in values:
        if isinstance(value, (list, tuple)):
            return MULTI_LABEL
        number = _number(value)
        are_numbers = are_numbers and number is not None
        has_fraction = has_fraction or (number is not None and not number.is_integer())
    return REGRESSION if are_numbers and has_fraction else SINGLE_LABEL


def _number(value: Any) -> float | None:
    """The finite number; a csv file holds numbers as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _classes(table: DataTable, name: str, values: Iterable[Any]) -> list[str]:
    labels = []
    for row, value in enumerate(values, 1):
        label = sys.intern(_class(table, name, row, value))  # one text for all rows of a class
        refuse_unlabelled(table, row, name, [label if isinstance(value, str) else value])
        labels.append(label)
    if all(map(is_numeric, set(labels))):
        for row, label in enumerate(labels, 1):
            if not float(label).is_integer():  # "nan" too, which a csv file may have in place of a missing value
                raise _unexpected(table, row, name, label, "a class (text or integer)")
    return labels


def is_numeric(text: str) -> bool:
    """Whether a text is a number, "nan" and "inf" included."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _class(table: DataTable, name: str, row: int, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # datasets and parquet turn integers into floats if the column has a missing value
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "" or not isinstance(value, (str, int)):
        raise _unexpected(table, row, name, value, "a label (text or integer)")
    return str(value)


def _sets(table: DataTable, name: str, values: Iterable[Any]) -> list[list[str]]:
    labels = []
    known: dict[tuple[str, ...], list[str]] = {}  # one list for all rows with the same labels
    for row, value in enumerate(values, 1):
        if not isinstance(value, (list, tuple)):
            raise _unexpected(table, row, name, value, "a list of labels, as in other rows")
        refuse_unlabelled(table, row, name, value)
        found = dict.fromkeys(_class(table, name, row, one) for one in value)
        labels.append(known.setdefault(tuple(found), list(found)))
    _refuse_multi_hot(table, name, values)
    return labels


def _refuse_multi_hot(table: DataTable, name: str, values: Iterable[Any]) -> None:
    """Raise UsageError for rows such as [0, 1, 0], which say of each class whether the row has it.

    Labels that happen to have the names 0 and 1 are never given twice in a row.
    """
    first: tuple[str, ...] = ()
    is_seen = False
    for value in values:
        row = tuple(map(str, value))
        first = first or row
        if len(row) < 2 or len(row) != len(first) or not {*row} <= _BITS:
            return
        is_seen = is_seen or len({*row}) < len(row) or row != first
    if is_seen:
        expected = 'the names of the row\'s labels, such as ["a", "b"], and not a 0 or 1 for each label'
        raise _unexpected(table, 1, name, next(iter(values)), expected)


def _numbers(table: DataTable, name: str, values: Iterable[Any]) -> Sequence[float]:
    labels = array("d")
    for row, value in enumerate(values, 1):
        number = _number(value)
        if number is None:
            raise _unexpected(table, row, name, value, "a number, as in other rows")
        labels.append(number)
    return labels


def _unexpected(table: DataTable, row: int, name: str, value: Any, expected: str) -> UsageError:
    return UsageError(
        f"{table.where(row)}: column '{name}' holds {short(value)}, expected {expected}: correct or remove the row"
    )


_READERS: dict[str, Callable[[DataTable, str, Iterable[Any]], Sequence[Any]]] = {
    SINGLE_LABEL: _classes,
    MULTI_LABEL: _sets,
    REGRESSION: _numbers,
}


def label_names(labels: Iterable[str]) -> list[str]:
    """Distinct labels, sorted as numbers if all labels are numbers, otherwise as texts."""
    names = sorted(set(labels))  # first as texts: labels such as 1 and 01 are equal as numbers
    return sorted(names, key=int) if all(map(_INTEGER.fullmatch, names)) else names
