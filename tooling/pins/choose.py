"""Which pin a command line means: a row, with the default index's torch, or with versions of the user's own."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.utils import canonicalize_name

from tooling.basis.errors import UsageError
from tooling.pins import parse as pins
from tooling.pins import rules
from tooling.pins.parse import Matrix
from tooling.pins.pin import PYTORCH_CPU, Pin, TorchSource


def choose(
    name: str | None = None,
    assignments: Sequence[str] = (),
    torch_source: str = TorchSource.ROW,
    matrix: Matrix | None = None,
) -> Pin:
    """The pin of `--pin NAME --set PACKAGE=VERSION … --torch-source row|default`.

    Raises UsageError with the rule that the combination breaks (tooling.pins.rules).
    """
    if torch_source not in tuple(TorchSource):
        choices = " or ".join(TorchSource)
        raise UsageError(f"--torch-source is {torch_source!r}, expected {choices}")
    pin = (matrix or pins.load()).pin(name)
    versions = parse(assignments, pin)
    torch = versions.get("torch")
    if torch and "+" not in torch:  # the row's source has no other; with_default_torch takes it off again
        versions["torch"] = torch + PYTORCH_CPU
    wanted = f"pin {pin.name}" + (f" with {', '.join(assignments)}" if assignments else "")
    if versions:
        pin = pin.with_versions(versions)
    if torch_source == TorchSource.DEFAULT:
        pin = pin.with_default_torch()
    if problem := rules.broken(rules.row_of(pin)):
        raise UsageError(f"{wanted} is not possible: {problem}")
    return pin


def parse(assignments: Sequence[str], pin: Pin) -> dict[str, str]:
    """PACKAGE=VERSION words as a mapping by canonical name."""
    known = (*pins.REQUIRED_PACKAGES, *pins.OPTIONAL_PACKAGES, *pin.build_packages)
    versions = {}
    for word in assignments:
        name, _, version = word.partition("=")
        package = canonicalize_name(name)
        if package not in known:
            raise UsageError(
                f"--set {word}: {name!r} is not a package of a pin, expected one of {', '.join(known)}"
            )
        if not pins.VERSION.fullmatch(version):
            raise UsageError(f"--set {word}: {version!r}, expected {pins.EXACT_VERSION}")
        versions[str(package)] = version
    return versions
