"""The reasons and warnings of a plan, collected while the plan is computed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Notes:
    """Reasons for decisions, and warnings about what the user may want to change. Lines are appended in order."""

    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
