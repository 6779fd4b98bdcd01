"""Which packages this interpreter has. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata


def versions(names: Iterable[str]) -> dict[str, str]:
    """The version of each of `names` that is installed, in their order."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
