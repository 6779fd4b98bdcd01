"""Writes a measurement: a JSON file, a picture, and a table or the JSON document on standard output."""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console, RenderableType

from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE
from tooling.basis.say import say
from tooling.engine.api import Engine
from tooling.image.build import Image

FOLDER = CACHE / "bench"

OutputOption = Annotated[str | None, "the folder for the JSON file and the PNG; default: .cache/bench"]

Document = Mapping[str, Any]


def folder(output: str | None = None) -> Path:
    """Create the folder for the files, by default FOLDER. Raises UsageError."""
    path = Path(output) if output else FOLDER
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"bench: --output {output}: {error.strerror}: choose a folder that is writable") from None
    return path


def facts(engine: Engine, image: Image) -> dict[str, Any]:
    """What every document has."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "image": image.id, "cpus": engine.cpus}


def save(kind: str, document: Document, parent: Path) -> Path:
    """Write `parent`/`kind`-TIME.json with the document, and return its path. TIME is the document's date."""
    date = datetime.fromisoformat(document["date"])
    path = parent / f"{kind}-{date:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def publish(
    kind: str,
    document: Document,
    parent: Path,
    table: Callable[[Document], RenderableType],
    draw: Callable[[Document, Path], None] | None,
    as_json: bool,
) -> None:
    """Save the document and, with `draw`, its picture. Print the table or, with `as_json`, the document."""
    path = save(kind, document, parent)
    if draw:
        draw(document, path.with_suffix(".png"))
    if as_json:
        sys.stdout.write(path.read_text(encoding="utf-8"))
    else:
        Console().print(table(document))
    say(f"wrote {path}" + (" and .png" if draw else ""))
