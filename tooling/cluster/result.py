"""result.json, in which a job reports its result. The job of an image that is not ours can write anything."""

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
    """Raises UsageError if a value of the document that the block reads is missing or wrong."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"{shown(output / NAME)} has other content than this version of ./inv expects "
            f"({type(error).__name__}: {one_line(error)}): use an image of this version"
        ) from error
