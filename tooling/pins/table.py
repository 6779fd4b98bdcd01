"""`./inv matrix`: the pins as a table or as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from cpu_train_stack.cli.files import write_output
from cpu_train_stack.page import render
from cpu_train_stack.page.blocks import Page, Section, Texts, Tile
from cpu_train_stack.page.blocks import Table as PageTable
from tooling.basis.console import console
from tooling.pins import rules, status
from tooling.pins.parse import Matrix
from tooling.pins.pin import INTEL_BINDINGS, IPEX, Ccl, Pin

COLUMNS = ("pin", "torch", "ipex", "ccl", "transformers", "python", "debian", "status", "proved_by", "eol")
WIDTH = 150


def row(pin: Pin) -> dict[str, Any]:
    """One pin as a row of --json. A value is None if the pin has no such package or proof."""
    proof = status.of(pin)
    backend = f"intel {pin.packages[INTEL_BINDINGS]}" if pin.ccl is Ccl.INTEL else "bindings"
    return {
        "pin": pin.name,
        "torch": pin.packages["torch"],
        "ipex": pin.packages.get(IPEX),
        "ccl": f"{backend}, oneCCL {pin.oneccl}",
        "transformers": pin.packages["transformers"],
        "accelerate": pin.packages.get("accelerate"),
        "python": pin.python,
        "debian": str(pin.debian.number),
        "abi": rules.abi(pin.packages["torch"]),
        "sources": {package: source.url for package, source in pin.sources.items()},
        "status": str(proof.status),
        "proved_by": proof.command or None,
        "proved_on": proof.date or None,
        "torch_source": str(proof.torch_source) if proof.command else None,
        "eol": pin.debian.eol,
        "notes": list(pin.warnings),
        "advisories": [advisory.id for advisory in pin.advisories],
    }


def show(matrix: Matrix, as_json: bool, html: str | None = None) -> None:
    """Print every pin on standard output. `html`: a file for the page."""
    rows = [row(pin) for pin in matrix.pins.values()]
    if html:
        write_output(Path(html), render.html_text(page(matrix, rows)), "--html")
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"pins (default: {matrix.default})", title_justify="left")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), overflow="fold")
    for pin in matrix.pins.values():
        table.add_row(*_cells(pin, "-"))
    out = console(WIDTH)
    out.print(table)
    for line in _notes(rows):
        out.print(line, highlight=False, soft_wrap=True)


def page(matrix: Matrix, rows: Sequence[dict[str, Any]]) -> Page:
    """The rows, with what each one has."""
    columns = [column.replace("_", " ") for column in COLUMNS]
    cells = [_cells(pin, "–") for pin in matrix.pins.values()]
    counted = Counter(one["status"] for one in rows)
    tiles = [Tile(name, str(number), "rows") for name, number in sorted(counted.items())]
    if ended := sum(map(_has_ended, matrix.pins.values())):
        tiles.append(Tile("out of support", str(ended), "rows, see the notes"))
    return Page(
        title="Version matrix",
        state="",
        verdict="Version matrix",
        about=f"Default: {matrix.default}",
        tiles=tiles,
        sections=[
            Section("rows", "Rows", [PageTable("", columns, cells)]),
            Section("notes", "Notes", [Texts("", _notes(rows))]),
        ],
    )


def _cells(pin: Pin, nothing: str) -> list[str]:
    """A row of COLUMNS."""
    found = row(pin)
    found["eol"] += " (over)" if _has_ended(pin) else ""
    return [str(found[column] or nothing) for column in COLUMNS]


def _has_ended(pin: Pin) -> bool:
    return bool(pin.debian.ended(datetime.now(UTC).date()))


def _notes(rows: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each note, with the pins that have it."""
    notes: dict[str, list[str]] = {}
    for cells in rows:
        for note in cells["notes"]:
            notes.setdefault(note, []).append(cells["pin"])
    return [f"{', '.join(names)}: {note}" for note, names in notes.items()]
