"""The page of `./inv matrix --html`."""

from datetime import date
from pathlib import Path

import pytest

from tooling.pins import parse, table
from tooling.pins.pin import DEBIAN_RELEASES, OLDEST_SUPPORTED


def test_the_page_has_every_row_and_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = parse.load()
    file = tmp_path / "matrix.html"
    table.show(matrix, as_json=False, html=str(file))
    shown, text = capsys.readouterr().out, file.read_text(encoding="utf-8")
    for pin in matrix.pins.values():
        assert f'["{pin.name}","{pin.packages["torch"]}"' in text
    assert "CVE-2025-32434" in shown
    assert "CVE-2025-32434" in text


def test_the_end_of_debians_support_is_a_note_of_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert DEBIAN_RELEASES[11].ended(date(2026, 8, 31)) == ""
    ended = DEBIAN_RELEASES[11].ended(date(2026, 9, 1))
    assert ended.startswith("Debian 11 has had no security updates since 2026-08-31: use pin 2.1 or newer")
    matrix = parse.load()
    assert not DEBIAN_RELEASES[matrix.pins[OLDEST_SUPPORTED].debian.number].ended(date(2026, 12, 1))
    table.show(matrix, as_json=False)
    assert f"2.0, 1.13, 1.12, 1.10: {ended}" in capsys.readouterr().out
