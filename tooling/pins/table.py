"""`./inv matrix`: the pins as a table or as JSON."""

import json
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from tooling.basis.console import console
from tooling.pins import rules, status
from tooling.pins.parse import Matrix
from tooling.pins.pin import INTEL_BINDINGS, IPEX, Ccl, Pin

COLUMNS = ("pin", "torch", "ipex", "ccl", "transformers", "python", "debian", "status", "proved_by", "eol")
WIDTH = 150
GLOO = "gloo, without Intel's ccl"


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
        "notes": [str(advisory) for advisory in pin.advisories],
        "advisories": [advisory.id for advisory in pin.advisories],
        "without_intel": _without_intel(pin),
    }


def _without_intel(pin: Pin) -> dict[str, str] | None:
    """The proof without Intel's bindings, with gloo as the process group."""
    proof = status.without_intel(pin)
    if not proof.command:
        return None
    return {"status": str(proof.status), "proved_by": proof.command, "proved_on": proof.date}


def show(matrix: Matrix, as_json: bool) -> None:
    """Print every pin on standard output."""
    rows = [row(pin) for pin in matrix.pins.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"pins (default: {matrix.default})", title_justify="left")
    for column in COLUMNS:
        table.add_column(column.replace("_", " "), overflow="fold")
    for cells in rows:
        table.add_row(*(cells[column] or "-" for column in COLUMNS))
    out = console(WIDTH)
    out.print(table)
    for cells in rows:
        if proved := cells["without_intel"]:
            proof = f"{proved['status']} with the default index's torch and {GLOO} ({proved['proved_by']})"
            out.print(f"{cells['pin']}: {proof}", highlight=False)
    for note, names in _notes(rows).items():
        out.print(f"{', '.join(names)}: {note}", highlight=False, soft_wrap=True)


def _notes(rows: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """The names of the pins that have a note, by note."""
    notes: dict[str, list[str]] = {}
    for cells in rows:
        for note in cells["notes"]:
            notes.setdefault(note, []).append(cells["pin"])
    return notes
