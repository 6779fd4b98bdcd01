"""What a plan says of itself while it is made."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Notes:
    """Reasons for what was decided, and warnings of what the user may want to change. Lines are added in order."""

    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def count(number: int, what: str, several: str = "") -> str:
    """1 core, 2 cores; `several`: the plural where it is not made with an s."""
    return f"{number} {what if number == 1 else several or what + 's'}"
