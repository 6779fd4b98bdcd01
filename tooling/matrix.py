"""`./inv matrix`: the pins as a table or as JSON."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from tooling.pins import Matrix, Pin

COLUMNS = ("pin", "torch", "ipex", "ccl", "transformers", "python", "debian")


def row(pin: Pin) -> dict[str, str | None]:
    """One pin as the machine-readable row; None where the pin has no such part."""
    return {
        "pin": pin.name,
        "torch": pin.packages["torch"],
        "ipex": pin.packages.get("intel-extension-for-pytorch"),
        "ccl": f"bindings, oneCCL {pin.build_packages['oneccl-devel']}",
        "transformers": pin.packages["transformers"],
        "python": pin.python,
        "debian": str(pin.debian.number),
    }


def show(matrix: Matrix, as_json: bool) -> None:
    """Prints every pin on standard output."""
    rows = [row(pin) for pin in matrix.pins.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"pins (default: {matrix.default})", title_justify="left")
    for column in COLUMNS:
        table.add_column(column)
    for cells in rows:
        table.add_row(*(cells[column] or "-" for column in COLUMNS))
    Console().print(table)
