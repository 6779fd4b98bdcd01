"""Numbers as users type and read them. Integers are ASCII only: `str.isdigit` and `\\d` also accept ² and ٣."""

from __future__ import annotations

_MAX_DIGITS = 18  # fits a signed 64-bit integer


def whole_number(text: str) -> int | None:
    """`text` as a non-negative integer. None for other text and for more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 core`, `2 cores`. `plural`: for an irregular plural."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
