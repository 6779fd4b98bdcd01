"""Proofs that a pin works, each recorded by the command that proved it.

images/status.json has the proofs of rows: `resolved` by ./inv dev check-matrix, `tested` by ./inv demo. A proof is
valid for the versions that were proved: a row whose versions change is `listed` again. .cache/tested/ has the
contents of the images with which a demo passed on this machine.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked, parse_json, write_with_folder
from tooling.basis.paths import CACHE, IMAGES
from tooling.pins.pin import Pin, TorchSource

STATUS_FILE = IMAGES / "status.json"
TESTED = CACHE / "tested"


class PinStatus(StrEnum):
    """In ascending order. `resolved`: pip finds every package. `tested`: a demo trained with the image."""

    LISTED = "listed"
    RESOLVED = "resolved"
    TESTED = "tested"


@dataclass(frozen=True)
class Proof:
    """`command` proved the pin on `date`. `facts_sha256`: the proved versions (Pin.facts_sha256)."""

    status: PinStatus
    command: str
    date: str
    facts_sha256: str
    torch_source: TorchSource


NOTHING = Proof(PinStatus.LISTED, "", "", "", TorchSource.ROW)


def of(row: Pin, path: Path = STATUS_FILE) -> Proof:
    """The strongest proof of a row, with its own torch or with the default index's build of the same version."""
    known = recorded(path)
    valid = [
        proof
        for pin in (row, row.with_default_torch())
        if (proof := known.get(pin.name)) and proof.facts_sha256 == pin.facts_sha256
    ]
    return max([*valid, NOTHING], key=lambda proof: list(PinStatus).index(proof.status))


def record(pin: Pin, status: PinStatus, command: str, path: Path = STATUS_FILE) -> bool:
    """Record a proof. Returns whether it was recorded.

    A proof is not recorded if the file has one that is as strong or stronger, or if the pin is a user's own.
    """
    if pin.own:
        return False
    with locked(TESTED.with_suffix(".lock"), lambda: None):  # of short duration
        proofs = recorded(path)
        known = proofs.get(pin.name, NOTHING)
        order = list(PinStatus)
        if known.facts_sha256 == pin.facts_sha256 and order.index(known.status) >= order.index(status):
            return False
        proofs[pin.name] = Proof(status, command, today(), pin.facts_sha256, pin.torch_source)
        document = {name: asdict(proofs[name]) for name in sorted(proofs)}
        write_with_folder(path, json.dumps(document, indent=2) + "\n")
    return True


def record_image(content: str, facts: Mapping[str, Any], folder: Path = TESTED) -> None:
    """Record that a demo passed with an image of this content (tooling.image.inspect.content_sha256)."""
    write_with_folder(folder / f"{content}.json", json.dumps({**facts, "date": today()}, indent=2) + "\n")


def is_tested(content: str, folder: Path = TESTED) -> bool:
    """Whether a demo passed on this machine with an image of this content."""
    return (folder / f"{content}.json").is_file()


def today() -> str:
    """The date in UTC, in ISO 8601 format."""
    return datetime.now(UTC).date().isoformat()


def recorded(path: Path = STATUS_FILE) -> dict[str, Proof]:
    """Every proof in the file by the pin's name. Raises UsageError if the file is malformed."""
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
        return {
            name: Proof(
                status=PinStatus(row.pop("status")), torch_source=TorchSource(row.pop("torch_source")), **row
            )
            for name, row in document.items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path.name} was not written by ./inv dev check-matrix ({error}): restore it from the repository, "
            "or delete it and run ./inv dev check-matrix"
        ) from None
