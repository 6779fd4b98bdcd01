"""Control characters of names, messages and output do not reach the terminal."""

from __future__ import annotations

import pytest

from cpu_train_stack.cli.printable import one_line, output_line, printable
from cpu_train_stack.cli.say import say


def test_text_is_shown_as_it_is_but_for_control_characters() -> None:
    assert printable("é 中 \t|\n") == "é 中 \t|\n"
    assert printable("\x1b]0;title\x07") == r"\x1b]0;title\x07"
    assert printable("a\rb\x9b2Jc\x7f\u2028") == r"a\rb\x9b2Jc\x7f\u2028"
    assert one_line("a\nb\x1b[2J\r\n c") == r"a b\x1b[2J c"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"a\x1b]52;c;eA==\x07b", rb"a\x1b]52;c;eA==\x07b"),
        (b"\x1b[2J\x1b[H", rb"\x1b[2J\x1b[H"),
        (b"\x1b[1A\x1b[2K", rb"\x1b[1A\x1b[2K"),
        (b"\xc2\x9b2J \x08", rb"\x9b2J \x08"),
        ("é 中\t".encode(), "é 中\t".encode()),
        (b"\xe2\x82", b"\xe2\x82"),
        (b"\x1b[1;31mred", b"\x1b[1;31mred\x1b[0m"),
        (b"50%\r60%\x1b[K\r", b"50%\rnode-1 | 60%\x1b[K\r\x1b[0m"),
        (b"a\rnode-0 | forged", b"a\rnode-1 | node-0 | forged"),
        (b"of Windows\r", b"of Windows\r"),
    ],
)
def test_a_node_can_color_its_lines_and_write_no_others(text: bytes, shown: bytes) -> None:
    assert output_line(b"node-1 | " + text + b"\n") == b"node-1 | " + shown + b"\n"


def test_a_part_of_a_line_without_a_name_is_printable() -> None:
    assert output_line(b"\x1b]52;c;eA==\x07 | more\n") == rb"\x1b]52;c;eA==\x07 | more" + b"\n"


def test_messages_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    say("column '\x1b[31mlabel' is missing")
    assert capsys.readouterr().err == "column '\\x1b[31mlabel' is missing\n"
