"""The doctor's report: one line per check, as text or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Callable

from cpu_train_stack.cli.errors import UsageError


class CheckStatus(str, Enum):
    """`warning`: training works, but may be slower, or the check was inconclusive. `error`: it does not work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Check:
    """`detail`: what was found. `fix`: what to do about it, empty if there is nothing to do."""

    name: str
    status: CheckStatus
    detail: str
    fix: str = ""


def attempt(name: str, examine: Callable[[], Iterable[Check]]) -> list[Check]:
    """The checks of one group, or one error if `examine` fails: the other groups still report."""
    try:
        return list(examine())
    except UsageError as error:
        return [refusal(name, error)]
    except Exception as error:  # noqa: BLE001 - the other groups still report
        text = " ".join(str(error).split())
        return [
            Check(
                name,
                CheckStatus.ERROR,
                f"the check itself failed: {type(error).__name__}: {text}",
                "check whether the container hides /proc or /sys, or forbids starting processes",
            )
        ]


def refusal(name: str, error: UsageError) -> Check:
    """A UsageError as a check: the text after its last colon is the fix."""
    detail, _, fix = str(error).rpartition(": ")
    return (
        Check(name, CheckStatus.ERROR, detail, fix)
        if detail
        else Check(name, CheckStatus.ERROR, fix, "correct it")
    )


def worst(checks: Iterable[Check]) -> CheckStatus:
    """The most severe status; ok without checks."""
    order = list(CheckStatus)
    return max((check.status for check in checks), key=order.index, default=CheckStatus.OK)


def document(checks: Iterable[Check]) -> str:
    """The JSON of --json. Scripts read its keys: do not rename them."""
    return json.dumps({"checks": [asdict(check) for check in checks]}, indent=2)


def lines(check: Check, width: int) -> str:
    """One row of the table, folded to `width` columns, with the fix below."""
    first = f"{check.name:<20}  {check.status.value:<7}  "
    fold = textwrap.TextWrapper(max(width, 60), break_long_words=False, break_on_hyphens=False)
    fold.initial_indent, fold.subsequent_indent = first, " " * len(first)
    rows = fold.wrap(check.detail)
    if check.fix:
        fold.initial_indent = fold.subsequent_indent
        rows += fold.wrap(f"fix: {check.fix}")
    return "\n".join(rows)
