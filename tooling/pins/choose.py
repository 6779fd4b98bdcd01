"""Which pin a command line selects: a row, a row with the default index's torch, or versions of the user's own."""

from collections.abc import Sequence

from packaging.utils import canonicalize_name

from cpu_train_stack.cli.errors import UsageError
from tooling.pins import added, parse, rules
from tooling.pins.pin import (
    EXACT_VERSION,
    IPEX,
    OPTIONAL_PACKAGES,
    PYTORCH_CPU,
    REQUIRED_PACKAGES,
    VERSION,
    Ccl,
    Pin,
    TorchSource,
)

# Names of the columns of `./inv matrix` that are not those of packages.
_SHORT = {"ipex": IPEX}


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
    matrix = parse.load()
    pin = matrix.pin(name)
    is_intel, assignments = _split_backend(assignments)
    if is_intel:
        if not pin.intel:
            raise UsageError(f"--set ccl=intel: Intel published no bindings for the torch of pin {pin.name}")
        if torch_source == TorchSource.DEFAULT:
            raise UsageError("--set ccl=intel needs the CPU build of torch: omit --torch-source default")
        pin = pin.with_intel(pin.intel)
    versions = parse_assignments(assignments, pin)
    torch = versions.get("torch")
    if torch and "+" not in torch:  # the row's index has only +cpu builds; with_default_torch removes the suffix
        versions["torch"] = torch + PYTORCH_CPU
    wanted = f"pin {pin.name}" + (f" with {', '.join(assignments)}" if assignments else "")
    if versions or is_intel:
        pin = pin.with_versions(versions)
    if torch_source == TorchSource.DEFAULT:
        pin = pin.with_default_torch()
    if problem := rules.broken(pin):
        line = ".".join((torch or "").split(".")[:2])
        if torch and line != pin.name and (line in matrix.pins or line in matrix.refused):
            problem += f"; {_row_of(matrix, line)}"
        raise UsageError(f"{wanted} is not possible: {problem}")
    return pin.with_added(added.parse(packages)) if packages else pin


def _row_of(matrix: parse.Matrix, line: str) -> str:
    """What to use for a torch of this line."""
    return f"pin {line} has this torch: use --pin {line}" if line in matrix.pins else matrix.refused[line]


def _split_backend(assignments: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether ccl=intel is among the assignments, and the others."""
    chosen = {value for value in assignments if value.startswith("ccl=")}
    if wrong := chosen - {f"ccl={Ccl.INTEL}", f"ccl={Ccl.BINDINGS}"}:
        raise UsageError(f"--set {min(wrong)}: expected ccl={Ccl.BINDINGS} or ccl={Ccl.INTEL}")
    if len(chosen) > 1:
        raise UsageError("--set ccl=bindings and --set ccl=intel: give one of the two")
    return f"ccl={Ccl.INTEL}" in chosen, [value for value in assignments if value not in chosen]


def parse_assignments(assignments: Sequence[str], pin: Pin) -> dict[str, str]:
    """The version by canonical name, from PACKAGE=VERSION arguments."""
    known = (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES, *pin.build_packages)
    versions = {}
    for assignment in assignments:
        name, _, version = assignment.partition("=")
        package = canonicalize_name(_SHORT.get(name.lower(), name))
        if package not in known:
            raise UsageError(
                f"--set {assignment}: {name!r} is not a package of a pin, expected one of {', '.join(known)}"
            )
        if not VERSION.fullmatch(version):
            raise UsageError(f"--set {assignment}: found {version!r}, expected {EXACT_VERSION}")
        if package in versions:
            raise UsageError(f"--set {package} is given twice, expected once: keep one of the versions")
        versions[str(package)] = version
    return versions
