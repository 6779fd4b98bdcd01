"""Writes a measurement: a JSON file, a picture, and a table or the JSON document on standard output."""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console, RenderableType

from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE
from tooling.basis.say import Say

FOLDER = CACHE / "bench"

OutputOption = Annotated[str | None, "the folder for the JSON file and the PNG; default: .cache/bench"]

Document = Mapping[str, Any]


def folder(output: str | None) -> Path:
    """Create the folder for the files, by default FOLDER. Raises UsageError."""
    path = Path(output) if output else FOLDER
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"bench: --output {output}: {error.strerror}: choose a folder that is writable") from None
    return path


def stem(parent: Path, kind: str, now: datetime) -> Path:
    """The path of a measurement's files without their extension."""
    return parent / f"{kind}-{now:%Y%m%dT%H%M%SZ}"


def save(document: Document, path: Path) -> str:
    """Write the document to `path`.json, and return its text."""
    text = json.dumps(document, indent=2) + "\n"
    path.with_suffix(".json").write_text(text, encoding="utf-8")
    return text


def publish(
    document: Document,
    path: Path,
    table: Callable[[Document], RenderableType],
    draw: Callable[[Document, Path], None] | None,
    as_json: bool,
    say: Say,
) -> None:
    """Write `path`.json and, with `draw`, `path`.png. Print the table or, with `as_json`, the document."""
    text = save(document, path)
    if draw:
        draw(document, path.with_suffix(".png"))
    if as_json:
        sys.stdout.write(text)
    else:
        Console().print(table(document))
    say(f"wrote {path}.json" + (" and .png" if draw else ""))
