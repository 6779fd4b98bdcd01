"""The installed packages and their versions. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata, util

# Modules that only some images have.
CCL = "oneccl_bindings_for_pytorch"
IPEX = "intel_extension_for_pytorch"


def installed(module: str) -> bool:
    """Whether `module` can be imported. Does not import the module."""
    return util.find_spec(module) is not None


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of the packages in `names` that are installed, in this order."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def release(version: str | None) -> tuple[int, ...]:
    """`5.23.0` or `2.13.0+cpu` as numbers that can be compared; empty for None (not installed)."""
    numbers = []
    for part in (version or "").partition("+")[0].split("."):
        if not part.isdigit():  # rc1, dev0
            break
        numbers.append(int(part))
    return tuple(numbers)
