"""Which pin a command line selects: a row, a row with the default index's torch, or versions of the user's own."""

from collections.abc import Sequence

from packaging.utils import canonicalize_name

from tooling.basis.errors import UsageError
from tooling.pins import added, parse, rules
from tooling.pins.pin import (
    EXACT_VERSION,
    OPTIONAL_PACKAGES,
    PYTORCH_CPU,
    REQUIRED_PACKAGES,
    VERSION,
    Pin,
    TorchSource,
)


def choose(
    name: str | None = None,
    assignments: Sequence[str] = (),
    torch_source: str = TorchSource.ROW,
    packages: Sequence[str] = (),
) -> Pin:
    """The pin for `--pin NAME --set PACKAGE=VERSION … --torch-source row|default --with PACKAGE …`.

    Raises UsageError with the rule that the combination breaks (tooling.pins.rules), or with the mistakes in
    `packages` (tooling.pins.added).
    """
    if torch_source not in tuple(TorchSource):
        raise UsageError(f"--torch-source is {torch_source!r}, expected {' or '.join(TorchSource)}")
    pin = parse.load().pin(name)
    versions = parse_assignments(assignments, pin)
    torch = versions.get("torch")
    if torch and "+" not in torch:  # the row's index has only +cpu builds; with_default_torch removes the suffix
        versions["torch"] = torch + PYTORCH_CPU
    wanted = f"pin {pin.name}" + (f" with {', '.join(assignments)}" if assignments else "")
    if versions:
        pin = pin.with_versions(versions)
    if torch_source == TorchSource.DEFAULT:
        pin = pin.with_default_torch()
    if problem := rules.broken(pin):
        raise UsageError(f"{wanted} is not possible: {problem}")
    return pin.with_added(added.parse(packages)) if packages else pin


def parse_assignments(assignments: Sequence[str], pin: Pin) -> dict[str, str]:
    """The version by canonical name, from PACKAGE=VERSION arguments."""
    known = (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES, *pin.build_packages)
    versions = {}
    for assignment in assignments:
        name, _, version = assignment.partition("=")
        package = canonicalize_name(name)
        if package not in known:
            raise UsageError(
                f"--set {assignment}: {name!r} is not a package of a pin, expected one of {', '.join(known)}"
            )
        if not VERSION.fullmatch(version):
            raise UsageError(f"--set {assignment}: {version!r}, expected {EXACT_VERSION}")
        versions[str(package)] = version
    return versions
