"""A snapshot on a whole terminal, with rich: progress, curves, a bar for each rank, the slowest rank, events."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from cpu_train_stack.page.texts import duration, gibibytes, number
from cpu_train_stack.records.stragglers import Parts, StepShare
from cpu_train_stack.watch import plain
from cpu_train_stack.watch.snapshot import Point, Snapshot

_CURVE_ROWS = 6
_MOST_EVENTS = 4
# Parts of a rank's bar: what it is called, its character and its color.
PARTS = (("computing", "█", "cyan"), ("reading", "▒", "yellow"), ("waiting", "·", "bright_black"))
# The dots of a braille character (U+2800), by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def render(now: Snapshot, width: int, height: int) -> Group:
    """At most `height` lines of `width` characters."""
    head = _head(now, width)
    tail = [*_warnings(now), *_events(now)]
    curves = _curves(now, width)
    room = height - len(head) - len(tail) - 2  # the last two lines say how to leave, if nothing else needs them
    bars = _bars(now.shares, now.parts, width, room - len(curves) if room - len(curves) >= 4 else room)
    if room - len(bars) < len(curves):
        curves = []
    leave = [] if now.is_over else [Text(""), Text("Ctrl-C closes this view; the job continues", "bright_black")]
    lines = [*head, *curves, *bars, *tail, *leave][:height]
    for one in lines:
        one.no_wrap, one.overflow = True, "ellipsis"
    return Group(*lines)


def _head(now: Snapshot, width: int) -> list[Text]:
    share = min(1.0, now.step / now.planned) if now.planned else 0.0
    count = f"step {now.step:,}/{now.planned:,} "
    left = f" {share:.0%}"
    if now.remaining is not None:
        left += f", {duration(now.remaining)} left"
    bar = max(4, width - len(count) - len(left))
    full = round(share * bar)
    progress = Text.assemble((count, "bold"), ("━" * full, "green"), ("─" * (bar - full), "bright_black"), left)
    speed = []
    for value, mean, unit in (
        (now.samples, now.mean_samples, "samples/s"),
        (now.tokens, now.mean_tokens, "tokens/s"),
    ):
        if value is not None:
            speed.append(f"{number(value)} {unit} (mean {number(mean)})")
    if not now.is_over:
        speed.append(f"{duration(now.elapsed)} so far")
    return [Text(now.title, "bold"), progress, Text(", ".join(speed)), Text("")]


def _curves(now: Snapshot, width: int) -> list[Text]:
    """The loss and the metric next to each other."""
    curves = [("loss", now.loss), (now.metric_name, now.metric)]
    curves = [(name, points) for name, points in curves if len(points) > 1]
    if not curves:
        return []
    each = width // len(curves) - 2
    blocks = [_curve(name.replace("eval_", ""), points, each) for name, points in curves]
    return [Text("  ".join(row.ljust(each) for row in rows), "cyan") for rows in zip(*blocks)] + [Text("")]


def _curve(name: str, points: Sequence[Point], width: int) -> list[str]:
    values = [value for _, value in points]
    low, high = min(values), max(values)
    labels = [number(high, 3), *[""] * (_CURVE_ROWS - 2), number(low, 3)]
    margin = max(map(len, labels)) + 1
    rows = plot(points, max(4, width - margin - 1), _CURVE_ROWS)
    title = f"{name} {number(values[-1])} at step {points[-1][0]:,}"
    return [title, *(f"{label:>{margin - 1}} {row}" for label, row in zip(labels, rows))]


def plot(points: Sequence[Point], width: int, height: int) -> list[str]:
    """The points as `height` lines of `width` braille characters: two dots wide and four high each.

    Several points in a column are drawn as their mean. A column without a point is empty, unless there are points
    on both sides: then the line continues.
    """
    columns, rows = 2 * width, 4 * height
    begin, end = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    sums: dict[int, list[float]] = {}
    for step, value in points:
        column = round((step - begin) / (end - begin) * (columns - 1)) if end > begin else 0
        sums.setdefault(column, []).append(value)
    known = sorted((column, sum(found) / len(found)) for column, found in sums.items())
    drawn: dict[int, float] = dict(known)
    for (left, first), (right, second) in zip(known, known[1:]):
        for column in range(left + 1, right):
            drawn[column] = first + (second - first) * (column - left) / (right - left)
    cells = [[0] * width for _ in range(height)]
    for column, value in drawn.items():
        row = round((high - value) / (high - low) * (rows - 1)) if high > low else rows // 2
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def _bars(shares: Sequence[StepShare], parts: Parts | None, width: int, room: int) -> list[Text]:
    """A bar for each rank; of many ranks, the slowest ones and the fastest."""
    if parts is None:
        return [Text("no step yet", "bright_black")]
    order = sorted(shares, key=lambda share: -share.busy)
    most = max(2, room - 2)
    shown, hidden = list(shares), 0
    if len(shares) > most:
        kept = [*order[: most - 2], order[-1]] if most > 2 else order[:1]
        shown, hidden = sorted(kept, key=lambda share: share.rank), len(shares) - len(kept)
    longest = max(share.seconds for share in shares)
    digits = len(str(max(share.rank for share in shares)))
    size = max(4, width - digits - 35)
    lines = [_legend(parts, len(shares) > 1)]
    for share in shown:
        line = Text(f"rank {share.rank:>{digits}} ")
        for (_, character, color), cells in zip(PARTS, _cells(share, longest, size)):
            line.append(character * cells, color)
        line.append(f" {share.seconds:.2f} s  {share.processor:4.0%} CPU  {gibibytes(share.memory)} GiB")
        lines.append(line)
    if hidden:
        lines.append(Text(f"{hidden} more ranks, faster than these", "bright_black"))
    return lines


def _legend(means: Parts, several: bool) -> Text:
    """What the characters mean, and the mean of the ranks."""
    line = Text("a step of each rank: ")
    for (name, character, color), part in zip(PARTS, means):
        line.append(f"{character} {name} {part:.0%}  ", color)
    return line.append(f"(network {means.network:.0%})" if several else "", PARTS[-1][2])


def _cells(share: StepShare, longest: float, size: int) -> tuple[int, int, int]:
    """The characters for computing, reading and waiting."""
    computing = round((share.busy - share.read) / longest * size) if longest else 0
    reading = round(share.read / longest * size) if longest else 0
    total = round(share.seconds / longest * size) if longest else 0
    return computing, reading, max(0, total - computing - reading)


def _warnings(now: Snapshot) -> list[Text]:
    found = []
    if now.state == "silent":
        found.append(f"no record for {duration(now.silent)}: the job may hang, or was killed")
    if now.state == "restarting":
        found.append(f"failed ({now.ending}): waiting for a restart")
    elif now.straggler is not None:
        found += [now.straggler.headline, f"  {now.straggler.why}", f"  {now.straggler.fix}"]
    for one in now.findings:
        found += [one.what, f"  {one.fix}"]
    return [Text("")] * bool(found) + [Text(line, "bold yellow") for line in found]


def _events(now: Snapshot) -> list[Text]:
    shown = [Text(plain.event(event)) for event in now.events[-_MOST_EVENTS:]]
    if now.restarts:
        shown.append(Text(f"restarts: {now.restarts}"))
    if now.is_over:
        shown.append(Text(plain.ending(now), "bold green" if now.state == "finished" else "bold red"))
    return [Text("")] * bool(shown) + shown
