"""The keys of every JSON document that the stack prints or writes, as recorded. Keys may be added, never renamed.

Each file of this folder holds one key path per line: `checks[].fix` is the key `fix` of each entry of `checks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Objects whose keys are data: names of variables, packages, metrics, flags of a transformers version.
_DATA = ("environment", "config", "versions", "metrics", "sources")


def keys(document: Any, path: str = "") -> Iterator[str]:
    """Every key path of a document."""
    if isinstance(document, list):
        for entry in document:
            yield from keys(entry, f"{path}[]")
    elif isinstance(document, dict):
        for name, value in document.items():
            here = f"{path}.{name}" if path else name
            yield here
            if name not in _DATA:
                yield from keys(value, here)


def missing(name: str, document: Any) -> list[str]:
    """The recorded keys of `name` that the document lacks."""
    recorded = (HERE / f"{name}.txt").read_text(encoding="utf-8").split()
    return sorted(set(recorded) - set(keys(document)))
