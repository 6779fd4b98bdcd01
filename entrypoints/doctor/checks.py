"""What the doctor says: one line a check, as JSON or as text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Callable

from entrypoints.errors import UsageError


class Status(str, Enum):
    """`warning`: training works, but slower, or not proven. `error`: it does not work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Check:
    """`detail`: what was found. `mend`: what to do about it, empty where there is nothing to do."""

    name: str
    status: Status
    detail: str
    mend: str = ""


def attempt(name: str, examine: Callable[[], Iterable[Check]]) -> list[Check]:
    """The checks of one family, or one error line where looking fails: a doctor that dies helps nobody."""
    try:
        return list(examine())
    except UsageError as error:
        return [refusal(name, error)]
    except Exception as error:  # noqa: BLE001 - whatever it is, the other families are still worth their lines
        text = " ".join(str(error).split())
        return [
            Check(
                name,
                Status.ERROR,
                f"the check itself failed: {type(error).__name__}: {text}",
                "see whether the container hides /proc or /sys, or forbids to start processes",
            )
        ]


def refusal(name: str, error: UsageError) -> Check:
    """A UsageError as a check: its line ends in what to do, behind the last colon."""
    detail, _, mend = str(error).rpartition(": ")
    return Check(name, Status.ERROR, detail, mend) if detail else Check(name, Status.ERROR, mend, "correct it")


def worst(checks: Iterable[Check]) -> Status:
    """The gravest status; ok where there is none."""
    order = list(Status)
    return max((check.status for check in checks), key=order.index, default=Status.OK)


def document(checks: Iterable[Check]) -> str:
    """The JSON of --json."""
    return json.dumps({"checks": [asdict(check) for check in checks]}, indent=2)


def lines(check: Check, width: int) -> str:
    """One row of the table, folded to `width` columns, its mend below it."""
    first = f"{check.name:<20}  {check.status.value:<7}  "
    fold = textwrap.TextWrapper(max(width, 60), break_long_words=False, break_on_hyphens=False)
    fold.initial_indent, fold.subsequent_indent = first, " " * len(first)
    rows = fold.wrap(check.detail)
    if check.mend:
        fold.initial_indent = fold.subsequent_indent
        rows += fold.wrap(f"mend: {check.mend}")
    return "\n".join(rows)
