"""Where the document of a measurement goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.entrypoints.bench import without_torch


def test_a_document_that_cannot_be_written_to_its_file_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = without_torch.load(monkeypatch, "output")
    with pytest.raises(UsageError, match=r"No such file or directory\): use the document on standard output"):
        output.publish({"seconds": 1.5}, tmp_path / "removed" / "file.json", "a table")
    assert json.loads(capsys.readouterr().out) == {"seconds": 1.5}
