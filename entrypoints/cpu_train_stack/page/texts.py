"""Numbers, durations and times as the page shows them. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence

from cpu_train_stack.machine.cpus import format_cpu_list

NOTHING = "–"
GIBIBYTE = 1 << 30
_LATEST = 1e11  # the year 5138
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def number(value: float | None, digits: int = 4) -> str:
    """With about `digits` digits, and commas between thousands."""
    if value is None:
        return NOTHING
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" in text or "." not in text else text.rstrip("0").rstrip(".")


def duration(seconds: float) -> str:
    """`0.8 s`, `43 s`, `5 min 12 s`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds else "0 s"
    whole = round(seconds)
    for unit, size, below, smaller in (
        ("d", _DAY, "h", _HOUR),
        ("h", _HOUR, "min", _MINUTE),
        ("min", _MINUTE, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def moment(seconds: float) -> str:
    """A time in UTC. One that no calendar has, computed from records that are wrong, becomes the nearest."""
    return datetime.datetime.fromtimestamp(min(max(seconds, 0.0), _LATEST), datetime.timezone.utc).strftime(
        "%Y-%m-%d %H:%M:%S UTC"
    )


def ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-3,7`."""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {format_cpu_list(numbers)}"


def cpus(numbers: Collection[int]) -> str:
    """`CPU 3`, `CPUs 0-3,7`."""
    return f"{'CPU' if len(numbers) == 1 else 'CPUs'} {format_cpu_list(numbers)}"


def gibibytes(size: float) -> str:
    return f"{size / GIBIBYTE:.2f}"
