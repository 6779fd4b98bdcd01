"""The choice of attention's kernel by a measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.operators import attention_rule


def row(tokens: int, trains: bool, ours: float, **other: Any) -> dict[str, Any]:
    return {"tokens": tokens, "trains": trains, "ours": ours, "torch": 1.0, "dropout": 0, "causal": False, **other}


ROWS = [
    row(16, False, 1.7),
    row(64, False, 0.9),
    row(16, True, 0.4),
    row(2048, True, 1.1),
    row(16, True, 2.0, dropout=0.1),
    row(2048, True, 0.5, causal=True),
]


def written(folder: Path, rows: Any) -> str:
    file = folder / "attention.json"
    file.write_text(json.dumps(rows))
    return str(file)


@pytest.mark.parametrize(
    ("tokens", "trains", "ours"),
    [
        (1, False, False),
        (31, False, False),
        (33, False, True),
        (9000, False, True),
        (100, True, True),
        (500, True, False),
    ],
)
def test_the_nearest_measured_length_decides(tmp_path: Path, tokens: int, trains: bool, ours: bool) -> None:
    measured = attention_rule.read(written(tmp_path, {"rows": ROWS}))
    assert measured is not None
    assert measured.chooses_ours(tokens, trains) is ours


def test_without_a_file_nothing_is_measured() -> None:
    assert attention_rule.read(None) is None
    assert attention_rule.read("") is None


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"rows": ROWS[:2]}, "lacks rows"),
        ({"rows": [{"tokens": 3}]}, "is no measurement"),
        ({"rows": 3}, "is no measurement"),
        ([], "is no measurement"),
        (None, "No such file"),
    ],
)
def test_another_file_is_one_line(tmp_path: Path, document: Any, problem: str) -> None:
    file = str(tmp_path / "none.json") if document is None else written(tmp_path, document)
    with pytest.raises(
        UsageError, match=f"^CPU_TRAIN_STACK_ATTENTION is '{file}': {problem}[^\n]*bench attention$"
    ):
        attention_rule.read(file)
