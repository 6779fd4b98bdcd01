"""Integers in ASCII digits. `str.isdigit` and `\\d` also accept ² and ٣."""

from __future__ import annotations

_MAX_DIGITS = 18  # fits a signed 64-bit integer


def whole_number(text: str) -> int | None:
    """`text` as a non-negative integer. None if it is not one, or has more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
