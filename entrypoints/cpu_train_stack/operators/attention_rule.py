"""The kernel for attention without dropout that a measurement found the faster one (`./inv bench attention`)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError


@dataclass(frozen=True)
class MeasuredAttention:
    """`rows`: tokens of a row, whether it trains, whether our kernel was at least as fast as torch's."""

    rows: tuple[tuple[int, bool, bool], ...]

    def chooses_ours(self, tokens: int, trains: bool) -> bool:
        """As for the measured row of the nearest length."""
        rows = [row for row in self.rows if row[1] is trains]
        return min(rows, key=lambda row: abs(math.log(row[0] / tokens)))[2]


def read(path: str | None) -> MeasuredAttention | None:
    """The measurement in the file, None without a file. Raises UsageError."""
    if not path:
        return None
    try:
        rows = tuple(map(_row, filter(_is_plain, json.loads(Path(path).read_text(encoding="utf-8"))["rows"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refused(path, getattr(error, "strerror", None) or "is no measurement of attention") from None
    if {trains for _, trains, _ in rows} != {True, False}:
        raise _refused(path, "lacks rows without dropout, with and without a backward pass")
    return MeasuredAttention(rows)


def _is_plain(row: dict[str, Any]) -> bool:
    return not (row["dropout"] or row["causal"])


def _row(row: dict[str, Any]) -> tuple[int, bool, bool]:
    return int(row["tokens"]), bool(row["trains"]), bool(row["ours"] <= row["torch"])


def _refused(path: str, problem: str) -> UsageError:
    return UsageError(f"{contract.ATTENTION} is {path!r}: {problem}, expected a file of ./inv bench attention")
