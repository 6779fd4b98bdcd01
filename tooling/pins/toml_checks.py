"""Checks of a parsed TOML file's parts: each raises UsageError with where it is, what was found and expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from tooling.basis.errors import UsageError


def table(where: str, key: str, value: Any) -> dict[str, Any]:
    """`value`, which must be a table."""
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {key} is {type(value).__name__}, expected a table")
    return value


def keys(where: str, found: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """All of `required` and nothing but these and `optional`."""
    known = required + optional
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UsageError(f"{where}: unknown key {key!r}{hint}: the keys are {', '.join(known)}")
    missing = [key for key in required if key not in found]
    if missing:
        raise UsageError(f"{where}: missing {', '.join(missing)}: the keys are {', '.join(known)}")


def choice(where: str, key: str, value: Any, choices: tuple[Any, ...]) -> None:
    """One of `choices`: a tuple, because a value of any type may stand in TOML, a list too."""
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices)
        raise UsageError(f"{where}: {key} = {value!r} is unknown: choose one of {listed}")


def text(where: str, key: str, value: Any, pattern: re.Pattern[str], expected: str) -> None:
    """A text of a certain form; `expected` says in words which."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UsageError(f"{where}: {key} = {value!r}, expected {expected}")
