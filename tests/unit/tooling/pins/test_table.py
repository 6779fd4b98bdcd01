"""The page of `./inv matrix --html`."""

from pathlib import Path

import pytest

from tooling.pins import parse, table


def test_the_page_has_every_row_and_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = parse.load()
    file = tmp_path / "matrix.html"
    table.show(matrix, as_json=False, html=str(file))
    shown, text = capsys.readouterr().out, file.read_text(encoding="utf-8")
    for pin in matrix.pins.values():
        assert f'["{pin.name}","{pin.packages["torch"]}"' in text
    assert "CVE-2025-32434" in shown
    assert "CVE-2025-32434" in text
