"""What a page consists of. assets/page.js draws each block; `encode` makes the JSON that it reads. Pure.

All texts are plain text: the page shows HTML in them literally.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Union

# Three digits are visible in a chart; five keep differences in the tables.
_DIGITS = 5
_LARGEST_EXACT = 10**15


@dataclass(frozen=True)
class Curve:
    """A line of a chart. `steps`, `seconds`: steps done, and seconds since the job's first start, of each value.

    In a chart over nodes, `steps` are numbers of nodes. `look`: "line", "thin" (behind the others), "points" (few
    values, with a dot each) or "band" (the lower edge of a filled band; the next curve is the upper edge).
    `color`: the number of a color; by default, the curve's place in its chart.
    """

    label: str
    steps: Sequence[float]
    seconds: Sequence[float]
    values: Sequence[float | None]
    look: str = "line"
    color: int | None = None


@dataclass(frozen=True)
class Chart:
    """`unit`: the title of the vertical axis. `from_zero`: whether this axis includes 0. `note`: below the title.

    `axis`: "choice" (the reader chooses steps or time), "time" or "nodes".
    """

    title: str
    unit: str
    curves: Sequence[Curve]
    from_zero: bool = False
    axis: str = "choice"
    note: str = ""


@dataclass(frozen=True)
class Table:
    """`right`: the columns of numbers. `folded`: whether the reader has to unfold the table.

    `even`: whether the columns have the same width.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    folded: bool = False
    note: str = ""
    even: bool = False


@dataclass(frozen=True)
class Facts:
    """Pairs of a name and a value."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Command:
    """A text to copy."""

    title: str
    text: str


@dataclass(frozen=True)
class Texts:
    """A list of sentences."""

    title: str
    items: Sequence[str]
    level: str = ""  # "warning", "error", or "" for information


@dataclass(frozen=True)
class Bar:
    """`values`: one for each part, in seconds. `total`: with the time that belongs to no part."""

    label: str
    values: Sequence[float]
    total: float
    mark: str = ""  # a short text behind the bar


@dataclass(frozen=True)
class Bars:
    """Stacked horizontal bars. `parts`: what each bar is made of."""

    title: str
    unit: str
    parts: Sequence[str]
    bars: Sequence[Bar]
    note: str = ""


@dataclass(frozen=True)
class Mark:
    """Something that happened `at` seconds after the first start and took `seconds`."""

    at: float
    seconds: float
    text: str


@dataclass(frozen=True)
class Lane:
    """Marks of one kind. `kind`: "start", "evaluation", "checkpoint", "failure", "stop" or "end"."""

    kind: str
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Strip:
    """A time line of `seconds`."""

    title: str
    seconds: float
    lanes: Sequence[Lane]


@dataclass(frozen=True)
class Shape:
    """A rectangle, or a text at its lower left corner, in pixels.

    `look`: its CSS class. `color`: the number of a color, None without one. `title`: shown to a resting mouse.
    """

    x: float
    y: float
    width: float = 0.0
    height: float = 0.0
    look: str = ""
    text: str = ""
    color: int | None = None
    title: str = ""


@dataclass(frozen=True)
class Drawing:
    """A picture. `alternative`: the same in words."""

    title: str
    width: float
    height: float
    shapes: Sequence[Shape]
    alternative: str


Block = Union[Chart, Table, Facts, Command, Texts, Bars, Strip, Drawing]


@dataclass(frozen=True)
class Section:
    """`name`: of the anchor. `axis`: whether its charts offer the choice of the horizontal axis."""

    name: str
    title: str
    blocks: Sequence[Block]
    axis: bool = False


@dataclass(frozen=True)
class Tile:
    """One of the large numbers at the top."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """`state`: "finished", "failed", "stopped", "open", or "" for other pages. `notices`: below the numbers."""

    title: str
    state: str
    verdict: str
    about: str
    tiles: Sequence[Tile] = ()
    notices: Sequence[Texts] = ()
    sections: Sequence[Section] = field(default_factory=list)


def encode(value: Any) -> Any:
    """As JSON. A dataclass becomes an object whose "is" names its class; numbers have five digits."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {one.name: encode(getattr(value, one.name)) for one in fields(value)}
        return {"is": type(value).__name__.lower(), **own}
    if isinstance(value, float):
        return short(value)
    if isinstance(value, (list, tuple, range)):
        return [encode(item) for item in value]
    return value


def short(value: float) -> float | None:
    """The number with few digits, None if JSON does not have it."""
    if not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < _LARGEST_EXACT:
        return int(value)
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if abs(rounded) >= 10**_DIGITS else rounded
