"""What a plan says of itself while it is made."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Notes:
    """Reasons for what was decided, and warnings of what the user may want to change. Lines are added in order."""

    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
