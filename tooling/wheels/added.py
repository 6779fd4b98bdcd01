"""Resolves and locks a user's own packages (`--with`) on top of a pin whose versions do not change.

The lock is .cache/locks/PIN.txt. It lists only the wheels that the pin does not have.
"""

import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.pins.added import Added
from tooling.pins.pin import Pin
from tooling.wheels import fetch, locks, pip, resolve
from tooling.wheels.resolve import LockedWheel

# In pip's explanation of a conflict: the constraint, which is the pin's version, and what was asked for.
_CONSTRAINT = "The user requested (constraint) "
_ASKED = "The user requested "
# In pip's log: why pip does not take a version.
_REJECTIONS = re.compile(r"^\S+     (.+ depends on .+|The user requested .+)$", re.MULTILINE)
_REQUIREMENT = re.compile(r"(?:depends on |The user requested )(.+)")
_PATIENCE_SECONDS = 30.0
_NOTHING = re.compile(r"No matching distribution found for ([^\s;(]+)")


def ensure(pin: Pin) -> None:
    """Lock the packages, unless the pin's present lock has been extended by them before."""
    if not locks.extends_the_present_row(pin):
        lock(pin)


def lock(pin: Pin) -> Path:
    """Resolve the packages with pip and replace their lock. Raises UsageError in one line; the old lock stays."""
    row = locks.read(pin)
    _refuse_wheels_of_the_row(pin.added, row, pin.without_added.name)
    folder = fetch.fetch(pin)  # pip reads the row's requirements in its wheels
    say(f"resolving {', '.join(pin.added.typed)} for pin {pin.without_added.name}")
    resolved = _resolve(pin, pin.added, row, folder)
    wheels = [wheel for wheel in resolved if wheel.name not in row]
    for wheel in (row.get(wheel.name, wheel) for wheel in resolved):
        if wheel.sha256 not in pin.added.hashes.get(wheel.name, {wheel.sha256}):
            owner = f"pin {pin.without_added.name}" if wheel.name in row else "the index"
            raise UsageError(
                f"{wheel.name} {wheel.version}: the wheel of {owner} has the sha256 {wheel.sha256}, which is none "
                "of those in the requirements file: nothing was installed"
            )
    _refuse_wheels_without_a_hash(pin.added, wheels)
    found = ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)
    say(f"adding {found}" if found else f"pin {pin.without_added.name} has all of these packages already")
    return locks.write_added(pin, wheels)


def _refuse_wheels_of_the_row(added: Added, row: Mapping[str, LockedWheel], name: str) -> None:
    for path in added.wheels:
        package, version, _, _ = parse_wheel_filename(path.name)
        if package in row:
            raise UsageError(
                f"--with {path.name}: pin {name} has {package} {row[package].version}, and --with changes no "
                f"version of a pin: use --set {package}={version} if an index has that version"
            )


def _refuse_wheels_without_a_hash(added: Added, wheels: Iterable[LockedWheel]) -> None:
    """As for pip, one --hash makes a hash necessary for all packages. Wheels on this machine need none."""
    given = {parse_wheel_filename(path.name)[0] for path in added.wheels}
    missing = [wheel for wheel in wheels if wheel.name not in added.hashes and wheel.name not in given]
    if added.hashes and missing:
        names = ", ".join(wheel.name for wheel in missing)
        lines = ", ".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in missing)
        raise UsageError(
            f"--hash is missing for {names}, but the requirements file has one for other packages: "
            f"add {lines} to the file; nothing was installed"
        )


def _resolve(pin: Pin, added: Added, row: Mapping[str, LockedWheel], folder: Path) -> list[LockedWheel]:
    with files.scratch(CACHE) as scratch:
        report, constraints, requirements = (
            scratch / name for name in ("report.json", "constraints.txt", "requirements.txt")
        )
        constraints.write_text("".join(f"{wheel.name}=={wheel.version}\n" for wheel in row.values()))
        requirements.write_text(added.search + added.wanted, encoding="utf-8")
        arguments = ["install", "--dry-run", "--ignore-installed", "--report", str(report)]
        arguments += ["--target", str(scratch / "target"), "--find-links", str(folder)]
        arguments += ["--constraint", str(constraints), "--requirement", str(requirements)]
        log = scratch / "log"  # has the reason for each version that pip does not take
        arguments += ["--log", str(log)]
        result = pip.run(arguments, pin=pin, scratch=scratch, patience=_PATIENCE_SECONDS)
        if result.returncode != 0:
            row_name = pin.without_added.name
            logged = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            rejections = _REJECTIONS.findall(logged)
            result.stdout += pip.skipped(logged)
            if reason := (
                conflict(result.stdout, row_name, row)
                or _not_found(result.stdout, pin)
                or _conflict_with_row(rejections, row_name, row)
            ):
                raise UsageError(reason)
            if result.returncode == -signal.SIGTERM:
                raise UsageError(
                    f"{', '.join(added.typed)} for pin {row_name}: pip tried one version after another for "
                    f"{_PATIENCE_SECONDS:.0f} s and was stopped: add versions, --with NAME==VERSION"
                )
            raise pip.failure(f"{', '.join(added.typed)} for pin {row_name}", result)
        return resolve.from_report(report)


def conflict(output: str, name: str, row: Mapping[str, LockedWheel]) -> str | None:
    """One line that names both sides of a conflict in pip's output, or None. `name`: of the row."""
    lines = [line for line in pip.conflict(output) if not line.startswith(_CONSTRAINT)]
    if not lines:  # no conflict, or one with the user's own constraints
        return None
    contradiction = "; ".join(line.replace(_ASKED, "--with asks for ") for line in lines[:3])
    return _conflict_with_row(lines, name, row) or f"the packages of --with contradict each other: {contradiction}"


def _conflict_with_row(lines: Iterable[str], name: str, row: Mapping[str, LockedWheel]) -> str | None:
    """The first of pip's lines that the row does not fulfil, as one line that names both sides."""
    for line in lines:
        found = _REQUIREMENT.search(line)
        try:
            wanted = Requirement(found[1].replace(" and ", ",")) if found else None
        except InvalidRequirement:
            continue
        wheel = row.get(canonicalize_name(wanted.name)) if wanted else None
        if wanted and wheel and not wanted.specifier.contains(wheel.version, prereleases=True):
            return (
                f"pin {name} has {wheel.name} {wheel.version}, but {line.replace(_ASKED, '--with asks for ')}: "
                f"choose another version, another pin, or --set {wheel.name}=VERSION"
            )
    return None


def _not_found(output: str, pin: Pin) -> str | None:
    found = _NOTHING.search(output)
    if found is None or pip.has_network_trouble(output):
        return None
    name = re.split(r"[=<>!~\[]", found[1])[0]
    return (
        f"no wheel of {found[1]} for Python {pin.python} was found: check the name and the version. If only its "
        f"sources are published, run pip wheel --no-deps --wheel-dir wheels {name} and add --with ./wheels"
    )
