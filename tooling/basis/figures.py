"""Tables of measurements: columns as formats of a row's keys, for the terminal and for the pages in docs/. Pure.

Columns map a header to a format such as `{samples_per_second}` or `{ratio_to[guide-bf16]:x}`. A row without one of
the keys, or with None, leaves the cell empty. A column without any cell is left out.

    no format   a number with three digits, a text as it is, a list of texts separated by commas
    range       the smallest and the largest of several numbers; empty if they are equal
    x, %        a ratio, a share
    ms, time    seconds in milliseconds, or in their two largest units
    GB, size    bytes in GB, or with a unit, such as 25 MiB
    yes|no      a text for True and one for False
"""

import string
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from cpu_train_stack.bench.cases import readable
from tooling.basis.console import plain_table

Row = Mapping[str, Any]
Columns = Mapping[str, str]

_SCALES = {"": 1.0, "ms": 1e3, "GB": 1e-9}


def number(value: float) -> str:
    """Three digits; all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """`3 h 51 min`, `4 min 39 s`, `46 s`."""
    rounded = round(max(0.0, seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    minutes = round(rounded / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


class _MissingError(Exception):
    """The row has no such figure."""


class _Formatter(string.Formatter):
    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            found = super().get_field(name, args, kwargs)
        except (KeyError, IndexError, TypeError):
            raise _MissingError from None
        if found[0] is None:
            raise _MissingError
        return found

    def format_field(self, value: Any, spec: str) -> Any:
        if isinstance(value, bool):
            return spec.split("|")[not value]
        if spec == "range":
            ends = [number(one(value)) for one in (min, max)]
            return " to ".join(dict.fromkeys(ends)) if ends[0] != ends[1] else ""
        if spec == "time":
            return duration(value)
        if spec == "size":
            return readable(value)
        if spec in _SCALES and isinstance(value, int | float):
            return number(value * _SCALES[spec])
        if spec == "x":
            return f"{value:.2f}x" if value < 10 else f"{number(value)}x"
        if isinstance(value, list):
            return ", ".join(map(str, value)) or "none"
        return format(value, ".0%" if spec == "%" else spec)


_FORMATTER = _Formatter()


def cell(form: str, row: Row) -> str:
    """A format with the figures of a row, or nothing."""
    try:
        return _FORMATTER.vformat(form, (), row)
    except _MissingError:
        return ""


def cells(columns: Columns, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The headers of all columns with a cell, and the cells of each row."""
    found = {header: [cell(form, row) for row in rows] for header, form in columns.items()}
    kept = {header: column for header, column in found.items() if any(column)}
    return list(kept), [list(line) for line in zip(*kept.values(), strict=True)]


def terminal_table(columns: Columns, rows: Sequence[Row], title: str | None = None, gap: int = 1) -> Table:
    """A table without borders. Columns of texts are on the left."""
    headers, lines = cells(columns, rows)
    texts = [header for at, header in enumerate(headers) if lines[0][at][:1].isalpha()]
    shown = plain_table(headers, texts, title, gap)
    for line in lines:
        shown.add_row(*line)
    return shown


def page_table(columns: Columns, rows: Sequence[Row]) -> str:
    """A table in Markdown."""
    return table_lines(*cells(columns, rows))


def table_lines(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Headers and cells in Markdown."""
    rows = (headers, ["---"] * len(headers), *lines)
    return "\n".join("".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in rows)
