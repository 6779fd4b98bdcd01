"""The version matrix: images/versions.toml parsed into frozen, validated pins.

A pin is one row: a Debian release, its Python and the exact versions of the packages that were chosen to fit
together. What those packages pull in is in the pin's lock (tooling.locks), not here.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tooling.errors import UsageError
from tooling.paths import IMAGES

VERSIONS_FILE = IMAGES / "versions.toml"


@dataclass(frozen=True)
class DebianRelease:
    """A Debian release as far as an image depends on it."""

    number: int
    suite: str
    python: str
    glibc_minor: int


# Source: Debian's package versions of python3 and libc6 in each release.
DEBIAN_RELEASES = {
    11: DebianRelease(11, "bullseye", "3.9", 31),
    12: DebianRelease(12, "bookworm", "3.11", 36),
    13: DebianRelease(13, "trixie", "3.13", 41),
}

PIN_KEYS = ("debian", "base", "python", "index", "tcmalloc_package", "packages", "build_packages")
REQUIRED_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "numpy",
    "intel-openmp",
    "impi-rt",
    "scikit-learn",
    "torchmetrics",
    "tensorboard",
    "psutil",
)
BUILD_PACKAGES = ("oneccl-devel",)
OPTIONAL_PACKAGES = ("intel-extension-for-pytorch", "oneccl-bind-pt", "protobuf", "sentencepiece")

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*(\.?(post|rc|a|b)[0-9]+)?(\+[a-z0-9.]+)?")
_URL = re.compile(r"(https?|file)://\S+")
_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}")
_BASE = re.compile(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}")
_APT_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")


@dataclass(frozen=True)
class Pin:
    """One row of the matrix. `index` is a URL; `packages` maps a distribution's name to its exact version.

    `build_packages` are what the ccl backend is compiled from: fetched like the others, but not installed.
    """

    name: str
    debian: DebianRelease
    base: str
    python: str
    index: str
    tcmalloc_package: str
    packages: Mapping[str, str]
    build_packages: Mapping[str, str]

    @property
    def requirements(self) -> tuple[str, ...]:
        """The row's own packages as pip requirements, sorted by name."""
        return _requirements(self.packages)

    @property
    def build_requirements(self) -> tuple[str, ...]:
        """The same for `build_packages`."""
        return _requirements(self.build_packages)

    @property
    def image(self) -> str:
        """The local tag of the image that is built for this pin."""
        return f"cpu-train-stack:{self.name}"


@dataclass(frozen=True)
class Matrix:
    """Every pin, in the file's order, and the one that is built when none is named."""

    default: str
    pins: Mapping[str, Pin]

    def pin(self, name: str | None = None) -> Pin:
        """The pin called `name`, or the default one. Raises UsageError with the choices."""
        chosen = self.default if name is None else name
        if chosen not in self.pins:
            raise UsageError(f"unknown pin {chosen!r}: choose one of {', '.join(self.pins)}")
        return self.pins[chosen]


def load(path: Path = VERSIONS_FILE) -> Matrix:
    """Reads and validates the matrix. Raises UsageError with one line for the first thing that is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.name} not found: expected {path}; restore it from the repository") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}") from None
    where = path.name
    _check_keys(where, document, required=("default", "indexes", "pins"))
    indexes = _table(where, "indexes", document["indexes"])
    for index, url in indexes.items():
        _check_format(f"{where}, indexes", index, url, _URL, "a URL such as https://HOST/PATH")
    rows = _table(where, "pins", document["pins"])
    for name in rows:
        _check_format(where, "a pin's name", name, _NAME, "what an image's tag may hold, such as 2.13")
    pins = {name: _pin(f"{where}, pin {name}", name, row, indexes) for name, row in rows.items()}
    _check_choice(where, "default", document["default"], tuple(pins))
    return Matrix(default=document["default"], pins=MappingProxyType(pins))


def _pin(where: str, name: str, row: Any, indexes: dict[str, Any]) -> Pin:
    row = _table(where, name, row)
    _check_keys(where, row, required=PIN_KEYS)
    _check_choice(where, "debian", row["debian"], tuple(DEBIAN_RELEASES))
    release = DEBIAN_RELEASES[row["debian"]]
    if row["python"] != release.python:
        raise UsageError(
            f"{where}: python = {row['python']!r}, but Debian {release.number} has {release.python}: "
            "change one of the two"
        )
    _check_choice(where, "index", row["index"], tuple(indexes))
    packages = _packages(where, "packages", row, REQUIRED_PACKAGES, OPTIONAL_PACKAGES)
    build_packages = _packages(where, "build_packages", row, BUILD_PACKAGES, ())
    _check_format(where, "base", row["base"], _BASE, "an image reference with its digest, name@sha256:…")
    _check_format(where, "tcmalloc_package", row["tcmalloc_package"], _APT_PACKAGE, "an apt package's name")
    return Pin(
        name=name,
        debian=release,
        base=row["base"],
        python=row["python"],
        index=indexes[row["index"]],
        tcmalloc_package=row["tcmalloc_package"],
        packages=packages,
        build_packages=build_packages,
    )


def _packages(
    where: str, key: str, row: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...]
) -> Mapping[str, str]:
    packages = _table(where, key, row[key])
    _check_keys(f"{where}, {key}", packages, required, optional)
    for package, version in packages.items():
        _check_format(f"{where}, {key}", package, version, _VERSION, "an exact version such as 2.13.0+cpu")
    return MappingProxyType(dict(packages))


def _requirements(packages: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}=={version}" for name, version in sorted(packages.items()))


def _table(where: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {key} is {type(value).__name__}, expected a table")
    return value


def _check_keys(
    where: str, table: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    known = required + optional
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UsageError(f"{where}: unknown key {key!r}{hint}: the keys are {', '.join(known)}")
    missing = [key for key in required if key not in table]
    if missing:
        raise UsageError(f"{where}: missing {', '.join(missing)}: the keys are {', '.join(known)}")


def _check_choice(where: str, key: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:  # a tuple, because a value of any type may stand in TOML, a list too
        listed = ", ".join(str(choice) for choice in choices)
        raise UsageError(f"{where}: {key} = {value!r} is unknown: choose one of {listed}")


def _check_format(where: str, key: str, value: Any, pattern: re.Pattern[str], expected: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UsageError(f"{where}: {key} = {value!r}, expected {expected}")
