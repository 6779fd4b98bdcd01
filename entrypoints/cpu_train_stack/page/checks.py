"""The page of `doctor --html`: the checks, and a picture of the machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cpu_train_stack.cli.checks import Check, CheckStatus, worst
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.page.blocks import Drawing, Page, Section, Table, Texts


def page(about: str, checks: Sequence[Check], drawings: Sequence[Drawing]) -> Page:
    """`about`: what was checked."""
    bad = [check for check in checks if check.status is not CheckStatus.OK]
    columns = ["check", "status", "details", "fix"]
    rows = [[check.name, check.status.value, check.detail, check.fix] for check in checks]
    verdict = _verdict(checks)
    return Page(
        title=f"{verdict}: doctor",
        state="failed" if worst(checks) is CheckStatus.ERROR else "" if bad else "finished",
        verdict=verdict,
        about=about,
        notices=[
            Texts(f"{check.name}: {check.detail}", [check.fix] if check.fix else [], check.status.value)
            for check in sorted(bad, key=lambda check: check.status is not CheckStatus.ERROR)
        ],
        sections=[
            Section("checks", "Checks", [Table("", columns, rows)]),
            *([Section("cores", "Cores", drawings)] if drawings else []),
        ],
    )


def _verdict(checks: Sequence[Check]) -> str:
    found = [
        sum(check.status is status for check in checks) for status in (CheckStatus.ERROR, CheckStatus.WARNING)
    ]
    parts = [count(number, name) for number, name in zip(found, ("error", "warning")) if number]
    return " and ".join(parts).capitalize() if parts else "No problems found"
