"""Resolves a pin's packages and their dependencies to wheels, with pip's resolver.

pip downloads metadata only, if an index provides it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.pins.pin import Pin, Source, TorchSource
from tooling.wheels import pip


class UnavailableError(UsageError):
    """A wheel is not on an index that this machine can reach. The versions may still fit together."""


@dataclass(frozen=True)
class LockedWheel:
    """One line of a lock: a canonical name, an exact version and the hex sha256 of the wheel."""

    name: str
    version: str
    sha256: str


def resolve(pin: Pin) -> tuple[list[LockedWheel], list[LockedWheel]]:
    """The wheels of a pin, and the wheels that are compiled into its image but not installed.

    Raises UsageError if packages do not exist or do not fit together.
    """
    # --no-deps: only dynamically linked programs need its dependencies.
    return _resolve(pin, pin.requirements, []), _resolve(pin, pin.build_requirements, ["--no-deps"])


def newest(pin: Pin, names: Collection[str]) -> dict[str, str]:
    """The newest releases of these packages, by name, that fit together and with the pin's other packages."""
    kept = [line for line in pin.requirements if line.partition("==")[0] not in names]
    return {wheel.name: wheel.version for wheel in _resolve(pin, [*kept, *names], []) if wheel.name in names}


def _resolve(pin: Pin, requirements: Sequence[str], options: list[str]) -> list[LockedWheel]:
    if not requirements:
        return []
    CACHE.mkdir(exist_ok=True)
    with files.scratch(CACHE) as scratch:
        report = scratch / "report.json"
        arguments = ["install", "--dry-run", "--ignore-installed", "--report", str(report), *options]
        arguments += ["--target", str(scratch / "target"), *requirements]
        result = pip.run(arguments, pin=pin, scratch=scratch)
        missing = [name for name in pin.sources if f" {name}==" in pip.complaints(result.stdout)]
        if result.returncode != 0 and missing and not pip.conflict(result.stdout):
            sources = dict.fromkeys(pin.sources[name] for name in [*missing, *pin.sources])
            say(f"the host's indexes do not have {missing[0]} {pin.packages[missing[0]]}: trying the pin's index")
            extra = [option for source in sources for option in source.extra_option]
            result = pip.run([*arguments, *extra], pin=pin, scratch=scratch)
            if result.returncode != 0 and (host := _unreachable(sources, pip.complaints(result.stdout))):
                wheels = ", ".join(f"{name} {pin.packages[name]}" for name in missing)
                default = pin.torch_source is TorchSource.DEFAULT
                other = "" if default else ", or use the default index's torch with --torch-source default"
                raise UnavailableError(
                    f"pin {pin.name} cannot be resolved: the host's indexes do not have {wheels}, and {host} "
                    f"cannot be reached: check network and proxy{other}"
                )
        if result.returncode != 0:
            error = pip.failure(f"pin {pin.name} cannot be resolved", result)
            # pip prints this word if packages exist and contradict each other.
            if "ResolutionImpossible" in result.stdout:
                raise error
            raise UnavailableError(str(error))
        return from_report(report)


def from_report(report: Path) -> list[LockedWheel]:
    """The wheels in the report of `pip install --report`."""
    return [_from_report(entry) for entry in json.loads(report.read_text(encoding="utf-8"))["install"]]


def _unreachable(sources: Mapping[Source, None], output: str) -> str | None:
    """The host of the first source that pip could not reach. pip continues without this source."""
    if not pip.has_network_trouble(output):
        return None
    hosts = [urlsplit(source.url).hostname or source.url for source in sources]
    return next((host for host in hosts if host in output), None)


def _from_report(entry: Mapping[str, Any]) -> LockedWheel:
    metadata, download = entry["metadata"], entry["download_info"]
    sha256 = download["archive_info"].get("hashes", {}).get("sha256")
    if sha256 is None:  # pip does not hash wheels in a local folder
        sha256 = files.sha256_of(Path(unquote(urlsplit(download["url"]).path)))
    return LockedWheel(canonicalize_name(metadata["name"]), metadata["version"], sha256)
