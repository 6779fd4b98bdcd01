"""Which JSON values the fields of a record may have. A job can write anything into its records. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable

# Of numbers; of the ranks of a job; of times in seconds since the epoch (the year 5138); of lists in lists.
_GREATEST, _MOST_RANKS, _LATEST, _DEEPEST = 1e15, 1 << 20, 1e11, 50
# The numbers that a calculation needs: a value outside is not valid.
_RANGES = {
    "time": (0, _LATEST),
    "world_size": (1, _MOST_RANKS),
    "local_world_size": (1, _MOST_RANKS),
    "training": (1, _GREATEST),
    "steps": (1, _GREATEST),
}


def check_of(name: str, annotation: str) -> Callable[[Any], bool]:
    """The check of a field's values: they have the type of its annotation, and are in its range."""
    if name in _RANGES:
        return _number_between(*_RANGES[name], is_count=annotation == "int")
    check, special = _TYPES[annotation], _FIELDS.get(name)
    return check if special is None else lambda value: special(value) and check(value)


def _number_between(low: float, high: float, *, is_count: bool = False) -> Callable[[Any], bool]:
    """Every number of every line is checked: in one call. JSON has no other types of numbers."""
    return lambda value: (
        type(value) in (int, float) and low <= value <= high and (not is_count or value == int(value))
    )


_is_number = _number_between(-_GREATEST, _GREATEST)
_is_count = _number_between(0, _GREATEST, is_count=True)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_finite(value: Any) -> bool:
    """For metrics, which are only shown: total_flos is larger than _GREATEST."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_optional_number(value: Any) -> bool:
    return value is None or _is_number(value)


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _with(checks: Mapping[str, Callable[[Any], bool]]) -> Callable[[Any], bool]:
    """An object in which the keys that are there have these types."""
    return lambda value: (
        isinstance(value, dict) and all(check(value[name]) for name, check in checks.items() if name in value)
    )


def _is_shallow(value: Any, depth: int = _DEEPEST) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_is_shallow(one, depth - 1) for one in inner)


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "float": _is_number,
    "int": _is_count,
    "str": _is_text,
    "float | None": _is_optional_number,
    "list[str]": _list_of(_is_text),
    "list[int]": _list_of(_is_count),
    "dict[str, str]": _dict_of(_is_text),
    "dict[str, float]": _dict_of(lambda value: value is None or _is_finite(value)),
    "dict[str, Any]": lambda value: isinstance(value, dict) and _is_shallow(value),
    "list[dict[str, str]]": _list_of(_dict_of(_is_text)),
}
_CORE = _with({"cpus": _list_of(_is_count), "socket": _is_count, "node": _is_count})
_NODE = _with({"number": _is_count, "memory_bytes": _is_count})
_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "plan": _with(
        {"reasons": _list_of(_is_text), "warnings": _list_of(_is_text), "ccl_worker_cores": _list_of(_is_count)}
    ),
    "topology": _with({"cores": _list_of(_CORE), "nodes": _list_of(_NODE)}),
}
