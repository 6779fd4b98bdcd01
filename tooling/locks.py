"""images/locks/<pin>.txt: every wheel of a pin with its sha256, in pip's --require-hashes format.

<pin>-build.txt beside it is the same for what is compiled into the image but not installed.

The lock is the only input of a fetch and of an offline install; versions.toml is the input of the lock.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from tooling import pip
from tooling.errors import UsageError
from tooling.paths import CACHE, IMAGES
from tooling.pins import Pin

LOCKS = IMAGES / "locks"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LockedWheel:
    """One line of a lock: a canonical name, an exact version and the hex sha256 of the wheel."""

    name: str
    version: str
    sha256: str


def path_of(pin: Pin) -> Path:
    """The pin's lock file, whether it exists or not."""
    return LOCKS / f"{pin.name}.txt"


def build_path_of(pin: Pin) -> Path:
    """The lock file of what is compiled into the pin's image."""
    return LOCKS / f"{pin.name}-build.txt"


def read(pin: Pin) -> dict[str, LockedWheel]:
    """The pin's wheels by canonical name. Raises UsageError if the lock is missing, broken or not the pin's."""
    return _read(pin, path_of(pin), pin.packages)


def read_build(pin: Pin) -> dict[str, LockedWheel]:
    """The same for what is compiled into the pin's image."""
    return _read(pin, build_path_of(pin), pin.build_packages)


def write(pin: Pin, say: Callable[[str], None]) -> Path:
    """Resolves the pin's packages with pip and writes its locks anew; the old ones stay if anything fails."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" != pin.python:
        # pip evaluates environment markers with the Python that runs it, whatever --python-version says.
        raise UsageError(
            f"./inv lock --pin {pin.name} runs on Python {sys.version_info.major}.{sys.version_info.minor}, "
            f"expected {pin.python}: remove .venv and run ./inv with a python{pin.python} first on PATH"
        )
    say(f"resolving {len(pin.packages)} packages for Python {pin.python} (wheels are looked at, not installed)")
    locked = {
        path_of(pin): _resolve(pin, pin.requirements, [], say),
        # Their dependencies are for programs that link them dynamically.
        build_path_of(pin): _resolve(pin, pin.build_requirements, ["--no-deps"], say),
    }
    for path, wheels in locked.items():
        draft = path.with_suffix(".draft")
        draft.write_text(_render(pin, wheels), encoding="utf-8")
        draft.replace(path)
    return path_of(pin)


def _resolve(
    pin: Pin, requirements: Sequence[str], options: list[str], say: Callable[[str], None]
) -> list[LockedWheel]:
    if not requirements:
        return []
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        report = Path(scratch) / "report.json"
        arguments = ["install", "--dry-run", "--ignore-installed", "--report", str(report), "--quiet", *options]
        arguments += ["--target", str(Path(scratch) / "target"), *pip.target_options(pin)]
        result = pip.run([*arguments, *requirements], scratch=Path(scratch))
        if result.returncode != 0 and "torch==" in result.stdout:
            say("the host's indexes do not have this torch: asking the pin's own index")
            result = pip.run([*arguments, "--extra-index-url", pin.index, *requirements], scratch=Path(scratch))
        if result.returncode != 0:
            raise pip.failure(f"pin {pin.name} cannot be resolved", result)
        return [_from_report(entry) for entry in json.loads(report.read_text())["install"]]


def _read(pin: Pin, path: Path, packages: Mapping[str, str]) -> dict[str, LockedWheel]:
    if not path.is_file():
        raise UsageError(f"pin {pin.name} has no {path.name}: make it with ./inv lock --pin {pin.name}")
    wheels = {wheel.name: wheel for wheel in _parse(path)}
    for name, version in packages.items():
        wheel = wheels.get(canonicalize_name(name))
        if wheel is None or wheel.version != version:
            found = wheel.version if wheel else "nothing"
            raise UsageError(
                f"{path.name} locks {name} {found}, but versions.toml wants {version}: "
                f"run ./inv lock --pin {pin.name}"
            )
    return wheels


def sha256_of(path: Path) -> str:
    """The hex sha256 of a file."""
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def _from_report(entry: Mapping[str, Any]) -> LockedWheel:
    metadata, download = entry["metadata"], entry["download_info"]
    sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256")
    if sha256 is None:  # pip does not hash a wheel that it found in a local folder
        sha256 = sha256_of(Path(unquote(urlsplit(download["url"]).path)))
    return LockedWheel(canonicalize_name(metadata["name"]), metadata["version"], sha256)


def _render(pin: Pin, wheels: list[LockedWheel]) -> str:
    lines = [f"# Every wheel of pin {pin.name}; made by ./inv lock --pin {pin.name}, not by hand."]
    for wheel in sorted(wheels, key=lambda wheel: wheel.name):
        lines += [f"{wheel.name}=={wheel.version} \\", f"    --hash=sha256:{wheel.sha256}"]
    return "\n".join(lines) + "\n"


def _parse(path: Path) -> list[LockedWheel]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    wheels = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        try:
            requirement, sha256 = line.split("--hash=sha256:")
            name, version = requirement.strip().split("==")
            if not _SHA256.fullmatch(sha256.strip()):
                raise ValueError(sha256)
        except ValueError:
            raise UsageError(
                f"{path.name}: {line!r} is not 'name==version --hash=sha256:…': run ./inv lock --pin {path.stem}"
            ) from None
        wheels.append(LockedWheel(canonicalize_name(name), version, sha256.strip()))
    return wheels
