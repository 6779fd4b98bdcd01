"""`./inv advisories`: what is known about the versions of a row, from the project's table and from OSV files."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.console import console
from tooling.pins import osv
from tooling.pins.osv import KnownVulnerability
from tooling.pins.pin import Pin
from tooling.wheels import locks

WIDTH = 150


def run(pin: Pin, folder: str | None, as_json: bool) -> None:
    """Print the findings. Raises Exit with 1 if the table of images/versions.toml lacks one of them."""
    if folder == "":  # an unset variable in --osv "$OSV"
        raise UsageError("--osv is empty, expected a folder: leave it out to list only images/versions.toml")
    versions = {name: wheel.version for name, wheel in locks.read(pin).items()}
    listed = {advisory.id for advisory in pin.advisories}
    found = osv.find(versions, osv.read(Path(folder))) if folder else []
    new = [finding for finding in found if not listed & set(finding.ids)]
    if as_json:
        table = [
            {"id": advisory.id, "summary": advisory.summary, "fix": advisory.fix} for advisory in pin.advisories
        ]
        rows = [{**asdict(finding), "listed": finding not in new} for finding in found]
        print(json.dumps({"pin": pin.name, "packages": len(versions), "table": table, "osv": rows}, indent=2))
    else:
        _show(pin, len(versions), found, new, folder)
    if new:
        raise Exit(code=1)


def _show(
    pin: Pin,
    packages: int,
    found: Sequence[KnownVulnerability],
    new: Sequence[KnownVulnerability],
    folder: str | None,
) -> None:
    out = console(WIDTH)
    for advisory in pin.advisories:
        out.print(f"{pin.name}: {advisory}: {advisory.fix}", highlight=False, soft_wrap=True)
    if found:
        table = Table("package", "version", "advisory", "fixed in", "summary")
        for finding in found:
            name = " ".join(finding.ids)
            cells = (finding.package, finding.version, name, " ".join(finding.fixed) or "-", finding.summary)
            table.add_row(*cells, style="bold" if finding in new else "dim")
        out.print(table)
    own = f"{pin.name}: {packages} packages, {len(pin.advisories)} advisories in images/versions.toml"
    known = f", {len(found)} in {folder}, {len(new)} of them not in images/versions.toml" if folder else ""
    hint = "" if folder else "; --osv FOLDER also searches osv.dev's dump"
    out.print(f"{own}{known}{hint}", highlight=False, soft_wrap=True)
