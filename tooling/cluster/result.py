"""result.json: what a cluster's job writes about itself. The job of a foreign image can write anything."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.cli.files import parse_json, read_below
from tooling.basis.paths import shown

NAME = "result.json"


def read(output: Path) -> dict[str, Any]:
    """The document in the job's output folder. Raises UsageError."""
    with understood(output):
        try:
            found = parse_json(read_below(output, NAME))
        except OSError as error:
            raise ValueError(error.strerror) from None
        if not isinstance(found, dict):
            raise TypeError(f"found {type(found).__name__}, expected an object")
        return found


@contextmanager
def understood(output: Path) -> Iterator[None]:
    """Raises UsageError if the block cannot use the document in this folder: a value is missing or wrong."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"{shown(output / NAME)} is not what the command of an image of this checkout writes "
            f"({type(error).__name__}: {one_line(error)}): use another image"
        ) from error
