"""Rows of a source and a target, and the errors for bad rows."""

from __future__ import annotations

from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import pair_rows
from cpu_train_stack.train.data.tables import DataTable


def table(**content: list[Any]) -> DataTable:
    return DataTable("x.jsonl", content)


LANGUAGES = [{"en": "one", "ro": "unu"}, {"en": "two", "ro": "doi"}]


@pytest.mark.parametrize(
    ("content", "names", "expected"),
    [
        ({"target": ["b"], "source": ["a"]}, None, [("a", "b")]),
        ({"completion": ["b"], "prompt": ["a"]}, None, [("a", "b")]),
        ({"id": ["x"], "article": ["a"], "score": ["1"], "summary": ["b"]}, None, [("a", "b")]),
        ({"article": ["a"], "summary": ["b"]}, ("summary", "article"), [("b", "a")]),
        ({"translation": LANGUAGES}, ("en", "ro"), [("one", "unu"), ("two", "doi")]),
        ({"translation": LANGUAGES}, ("ro", "en"), [("unu", "one"), ("doi", "two")]),
    ],
    ids=["named", "prompts", "first texts", "asked", "languages", "languages reversed"],
)
def test_sources_and_targets(content: dict[str, list[Any]], names: Any, expected: list[Any]) -> None:
    assert list(pair_rows.pairs(table(**content), names).items) == expected


@pytest.mark.parametrize(
    "content",
    [{"source": ["a"], "target": ["b"], "label": ["c"]}, {"translation": LANGUAGES}],
    ids=["pair", "both"],
)
def test_columns_of_pairs_are_recognized(content: dict[str, list[Any]]) -> None:
    assert pair_rows.has_pairs(table(**content))


@pytest.mark.parametrize(
    ("content", "names", "expected"),
    [
        ({"text": ["a"]}, None, "expected a source and a target, pass two columns as --text_column_names"),
        ({"source": ["a"], "target": ["b"]}, ("source",), "expected a source and a target"),
        (
            {"source": ["a"], "target": ["b"]},
            ("source", "summary"),
            "no column 'summary', it has 'source', 'target'",
        ),
        ({"source": ["a", "b"], "target": ["c", " "]}, None, "have no text in column 'target', first in row 2"),
        ({"translation": LANGUAGES}, None, "has the languages 'en', 'ro': pass --text_column_names"),
        ({"translation": [LANGUAGES[0], {"en": "two"}]}, ("en", "ro"), "no text in column 'ro', first in row 2"),
        (
            {"translation": ["one"]},
            ("en", "ro"),
            "row 1: column 'translation' holds 'one', expected a text for each",
        ),
    ],
    ids=["one column", "one name", "no column", "empty", "no languages", "no language", "no texts"],
)
def test_bad_rows_are_named(content: dict[str, list[Any]], names: Any, expected: str) -> None:
    with pytest.raises(UsageError) as error:
        pair_rows.pairs(table(**content), names)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
