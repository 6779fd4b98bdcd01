"""What is proved about a pin, written by the command that proves it.

images/status.json is about rows: `resolved` by ./inv dev check-matrix, `tested` by ./inv demo. A proof holds for
the versions that were tested: a row that is changed afterwards is only `listed`. .cache/tested/ is about images: the
contents of each image that a demo trained with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from tooling.basis.errors import UsageError
from tooling.basis.files import write_whole
from tooling.basis.paths import CACHE, IMAGES
from tooling.pins.pin import Ccl, Pin, TorchSource

STATUS_FILE = IMAGES / "status.json"
TESTED = CACHE / "tested"


class Status(StrEnum):
    """From nothing proved to most. `resolved`: pip finds every package. `tested`: built here and trained with."""

    LISTED = "listed"
    RESOLVED = "resolved"
    TESTED = "tested"


@dataclass(frozen=True)
class Proof:
    """`command` is what proved it, on `date`; `facts_sha256` what it was proved of (Pin.facts_sha256)."""

    status: Status
    command: str
    date: str
    facts_sha256: str
    torch_source: TorchSource


NOTHING = Proof(Status.LISTED, "", "", "", TorchSource.ROW)


def of(row: Pin, path: Path = STATUS_FILE) -> Proof:
    """The strongest proof of a row: of its own torch, or of the default index's build of it.

    What is proved with another backend in the place of Intel's says nothing of the row (`without_intel`).
    """
    default = row.with_default_torch()
    return _strongest([row, *([default] if default.ccl is row.ccl else [])], path)


def without_intel(row: Pin, path: Path = STATUS_FILE) -> Proof:
    """The proof of a row whose Intel bindings are left out, which the default index's torch does not take."""
    return _strongest([row.with_default_torch()] if row.ccl is Ccl.INTEL else [], path)


def _strongest(variants: Sequence[Pin], path: Path) -> Proof:
    known = recorded(path)
    valid = [
        proof for pin in variants if (proof := known.get(pin.name)) and proof.facts_sha256 == pin.facts_sha256
    ]
    return max([*valid, NOTHING], key=lambda proof: list(Status).index(proof.status))


def record(pin: Pin, status: Status, command: str, path: Path = STATUS_FILE) -> bool:
    """Writes a proof down, unless one as strong is there; returns whether it did. A user's own row has none."""
    if pin.own:
        return False
    proofs = recorded(path)
    known = proofs.get(pin.name, NOTHING)
    order = list(Status)
    if known.facts_sha256 == pin.facts_sha256 and order.index(known.status) >= order.index(status):
        return False
    proofs[pin.name] = Proof(status, command, today(), pin.facts_sha256, pin.torch_source)
    document = {name: asdict(proofs[name]) for name in sorted(proofs)}
    write_whole(path, json.dumps(document, indent=2) + "\n")
    return True


def record_image(content: str, facts: Mapping[str, Any], folder: Path = TESTED) -> None:
    """Writes down that a demo passed on an image with this content (tooling.image.inspect)."""
    write_whole(folder / f"{content}.json", json.dumps({**facts, "date": today()}, indent=2) + "\n")


def is_tested(content: str, folder: Path = TESTED) -> bool:
    """Whether a demo has passed on an image with this content, on this machine."""
    return (folder / f"{content}.json").is_file()


def today() -> str:
    """The date in UTC, as ISO 8601 has it."""
    return datetime.now(UTC).date().isoformat()


def recorded(path: Path = STATUS_FILE) -> dict[str, Proof]:
    """Every proof in the file by its pin's name. Raises UsageError if the file is broken."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Proof(
                Status(row["status"]),
                row["command"],
                row["date"],
                row["facts_sha256"],
                TorchSource(row["torch_source"]),
            )
            for name, row in document.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path.name} is not what ./inv dev check-matrix writes ({error}): restore it from the repository, "
            "or delete it and run ./inv dev check-matrix"
        ) from None
