"""The report of a measurement: a JSON file, a picture, and a table or the JSON document on standard output."""

import json
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType

from cpu_train_stack.bench.cases import digits
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import create_writable, write_with_folder
from cpu_train_stack.cli.say import say
from tooling.basis.console import console
from tooling.basis.paths import CACHE
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.recipe import revision

FOLDER = CACHE / "bench"
# Of tables in a file or a pipe, in characters.
WIDTH = 160

OutputOption = Annotated[str | None, "the folder for the JSON file and the PNG; default: .cache/bench"]

Document = Mapping[str, Any]


def folder(output: str | None = None) -> Path:
    """Create the folder for the files, by default FOLDER. Raises UsageError."""
    path = Path(output) if output else FOLDER
    try:
        create_writable(path)
    except OSError as error:
        raise UsageError(f"bench: {path}: {error.strerror}, expected a folder that you can write to") from None
    return path


def check_seconds(seconds: float) -> None:
    """Raises UsageError for a value of --seconds that no measurement takes."""
    if not 0 < seconds < 3600:
        raise UsageError(f"bench: --seconds is {seconds:g}, expected more than 0 and less than 3600")


def ratio(speeds: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """The median of the ratios of all rounds with both: a slow round has no effect."""
    ratios = [speed / other for speed, other in zip(speeds, others, strict=False) if speed and other]
    return digits(statistics.median(ratios)) if ratios else None


def facts(engine: Engine, image: Image) -> dict[str, Any]:
    """What every document has. `command`: that of `./inv`, in a list."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": revision()[0],
        "command": [shlex.join(("./inv", *sys.argv[1:]))],
        "image": image.id,
        "cpus": engine.cpus,
    }


def save(kind: str, document: Document, parent: Path) -> Path:
    """Write `parent`/`kind`-TIME.json with the document, and return its path. TIME is the document's date.

    Raises UsageError if it cannot be written, and then keeps the file of an earlier call.
    """
    date = datetime.fromisoformat(document["date"])
    path = parent / f"{kind}-{date:%Y%m%dT%H%M%SZ}.json"
    with _explained(path):
        write_with_folder(path, json.dumps(document, indent=2) + "\n")
    return path


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"bench: {path} cannot be written: {error.strerror or error}: free some space, or use another folder"
        ) from None


def publish(
    kind: str,
    document: Document,
    parent: Path,
    table: Callable[[Document], RenderableType],
    draw: Callable[[Document, Path], None] | None,
    as_json: bool,
) -> None:
    """Print the table or, with `as_json`, the document. Save the document and, with `draw`, its picture.

    Raises UsageError if a file cannot be written. The measurement is printed by then.
    """
    if as_json:
        print(json.dumps(document, indent=2), flush=True)
    else:
        console(WIDTH).print(table(document))
    path = save(kind, document, parent)
    if draw:
        picture = path.with_suffix(".png")
        with _explained(picture):
            draw(document, picture)
    say(f"wrote {path}" + (" and .png" if draw else ""))
