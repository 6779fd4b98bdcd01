"""Replaces control characters in names, messages and output of other programs and people. Pure, torch-free.

A terminal obeys control characters: they change its title and its clipboard, clear it, and overwrite other lines.
"""

from __future__ import annotations

import re

# C0 but tab and newline, DEL, C1, and the separators that some programs take for newlines.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
# Of output in UTF-8, which may be cut anywhere. Colors and "erase to the end of the line" stay.
_HARMLESS = rb"\x1b\[[0-9;:]*m|\x1b\[0?K"
_OUTPUT = re.compile(rb"(" + _HARMLESS + rb")|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
_RETURN = re.compile(rb"\r+(?!\n|\Z)")
_SEPARATOR = b" | "


def printable(text: str) -> str:
    """The text with each control character written out, such as `\\x1b`. Newlines and tabs stay."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The printable text in one line."""
    return printable(" ".join(text.split()))


def last_line(output: str) -> str:
    """The last line of a program's output: in most programs, the reason for a failure."""
    return (output.strip().splitlines() or ["no message"])[-1]


def output_line(line: bytes) -> bytes:
    """A line of a job's output, `NODE | TEXT`, for a terminal.

    Colors stay, and end with the line. After a carriage return, as progress bars write it, the node's name is
    printed again, so no node can imitate another one.
    """
    line = _OUTPUT.sub(lambda found: found[1] or ascii(found[0].decode()).encode()[1:-1], line)
    name, separator, text = line.partition(_SEPARATOR)
    text = _RETURN.sub(lambda _: b"\r" + name + separator, text)
    if b"\x1b[" in text:
        text = text.rstrip(b"\n") + b"\x1b[0m" + b"\n" * text.endswith(b"\n")
    return name + separator + text
