"""Rows of tokens in memory and in a file."""

from __future__ import annotations

import pickle
import random
import tempfile
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import token_rows
from cpu_train_stack.train.data.token_rows import TokenRows

CHANCE = random.Random(1)
ROWS = [
    [[CHANCE.randint(0, 1 << 30) for _ in range(length)], [CHANCE.randint(-100, 9) for _ in range(length)]]
    for length in (CHANCE.randint(0, 30) for _ in range(500))
]


@pytest.mark.parametrize("in_memory", [1 << 20, 1000, 0])
def test_rows_are_those_that_were_put_in(monkeypatch: pytest.MonkeyPatch, in_memory: int) -> None:
    monkeypatch.setattr(token_rows, "IN_MEMORY", in_memory)
    rows = TokenRows(ROWS, 2)
    assert list(rows.lengths) == [len(row[0]) for row in ROWS]
    for number in (*CHANCE.sample(range(500), 200), 0, 499):
        assert rows[number].tolist() == ROWS[number]
    copied = pickle.loads(pickle.dumps(rows))  # noqa: S301 - as a data loader does
    assert copied[321].tolist() == ROWS[321]
    assert rows[-1].tolist() == ROWS[-1]
    assert len(TokenRows([], 2)) == 0


def test_a_folder_that_cannot_be_written_to_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(token_rows, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="set TMPDIR to a folder"):
        TokenRows(ROWS, 2)
