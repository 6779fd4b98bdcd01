"""Numbers as users type and read them. Integers are ASCII only: `str.isdigit` and `\\d` also accept ² and ٣."""

from __future__ import annotations

from cpu_train_stack.cli.errors import UsageError

_MAX_DIGITS = 18  # fits a signed 64-bit integer
# The most containers of a cluster on one machine, and the most ranks in a container.
MOST_CONTAINERS, MOST_RANKS = 256, 1024
# Of a cluster of machines.
MOST_NODES, MOST_CPUS = 100_000, 65_536
# Of numbers without a limit of their own.
MOST = 1_000_000_000


def whole_number(text: str) -> int | None:
    """`text` as a non-negative integer. None for other text and for more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 core`, `2 cores`. `plural`: for an irregular plural."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def check_at_least(flag: str, value: float, least: int, most: int = MOST) -> None:
    """Raises UsageError for a value of an option that is smaller, greater than `most`, or not a number."""
    if not least <= value <= most:
        expected = f"{least} or more" if value < least else f"{least} to {most}"
        raise UsageError(f"{flag} is {value}, expected {expected}")
