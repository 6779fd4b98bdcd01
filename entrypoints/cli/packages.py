"""Which packages this interpreter has. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata, util

# Modules that only some images have.
CCL = "oneccl_bindings_for_pytorch"
IPEX = "intel_extension_for_pytorch"


def installed(module: str) -> bool:
    """Whether `module` can be imported. Does not import it."""
    return util.find_spec(module) is not None


def versions(names: Iterable[str]) -> dict[str, str]:
    """The version of each of `names` that is installed, in their order."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
