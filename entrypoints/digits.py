"""Numbers in the digits 0-9 alone: `str.isdigit` and `\\d` also take ² and ٣, which no launcher writes."""

from __future__ import annotations

_LENGTH = 18  # a signed 64-bit integer holds that many


def whole_number(text: str) -> int | None:
    """The integer from 0 on that `text` is, None where it is anything else or has more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LENGTH else None
