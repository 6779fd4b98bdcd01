"""`./inv compare`: folders without a flag, and errors of one line."""

from pathlib import Path

import pytest

import tasks
from tests import synthetic_records
from tests.unit.tooling.cli.program import run


def test_two_folders_make_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(synthetic_records.write(tmp_path / name, steps=12)) for name in ("a", "b")]
    file = tmp_path / "ab.html"
    for words in ([*folders, f"--output={file}"], [folders[0], "--output", str(file), "--folders", folders[1]]):
        assert run(tasks.SECTIONS, ["compare", *words], capsys) == (0, f"{file}\n", "")
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_help_shows_how_folders_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(tasks.SECTIONS, ["compare", "--help"], capsys)
    assert code == 0
    assert out.startswith("Usage: ./inv compare [options] FOLDERS\n")


def test_a_folder_without_records_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(tasks.SECTIONS, ["compare", str(tmp_path), str(tmp_path / "b")], capsys)
    assert (code, out) == (2, "")
    assert error.startswith(f"'{tmp_path}' holds no records of a job: expected _records/rank-*.jsonl")
    assert len(error.splitlines()) == 1
