"""What tables and lines on standard output show of foreign text."""

import pytest

from tooling.basis.console import console, plain_table


def test_foreign_text_reaches_the_terminal_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b]0;title\x07b\x9b2Jc"
    table = plain_table(["name"], left=(), title=evil)
    table.add_row(evil)
    console(100).print(table, evil)
    shown = capsys.readouterr().out
    assert shown.count(r"a\x1b]0;title\x07b\x9b2Jc") == 3
    assert not {"\x1b", "\x07", "\x9b"}.intersection(shown)
