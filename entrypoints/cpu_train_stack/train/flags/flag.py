"""Declare a flag of `train`: a field of TaskArguments or of a task's arguments, and what is checked of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

MOST = 2**31 - 1  # also the largest C int, which libraries use


@dataclass(frozen=True)
class FlagRange:
    """The numbers from `low` to `high` that a flag takes. `ends`: round brackets exclude an end.

    `hint`: what else to do. A number without a natural limit has a far one: infinity and slips of the keyboard are
    beyond it.
    """

    low: float
    high: float
    ends: str = "[]"
    hint: str = ""

    def __contains__(self, number: float) -> bool:  # NaN is in no range
        excluded = {
            end for end, bracket in ((self.low, self.ends[0]), (self.high, self.ends[1])) if bracket in "()"
        }
        return self.low <= number <= self.high and number not in excluded

    def __str__(self) -> str:
        low = f"{'above' if self.ends[0] == '(' else 'from'} {self.low}"
        return f"a number {low} {'and below' if self.ends[1] == ')' else 'to'} {self.high}{self.hint}"


COUNT = FlagRange(1, MOST)
# The settings of a flag that are not argparse's: the FlagRange that it takes, the flag without which it has no
# effect, and whether a rank needs the complete model for it.
CHECKS = frozenset({"takes", "needs", "whole"})


def flag(help_text: str, default: Any = None, **settings: Any) -> Any:
    """A field that is a flag. `settings`: CHECKS, and those of argparse's add_argument."""
    return field(default=default, metadata={"help": help_text, **settings})


def checks(arguments: Any, kind: str) -> dict[str, Any]:
    """The value of this one of CHECKS, by the name of the flag. `arguments`: a dataclass, or its instance."""
    return {item.name: item.metadata[kind] for item in fields(arguments) if kind in item.metadata}
