"""The version matrix: images/versions.toml parsed into frozen, validated pins.

A pin is one row: a Debian release, its Python and the exact versions of the packages that were chosen to fit
together. Their dependencies are in the pin's lock (tooling.wheels.locks). tooling.pins.rules decides whether the
packages fit together.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tooling.basis.errors import UsageError
from tooling.basis.paths import IMAGES
from tooling.pins import toml_checks as check
from tooling.pins.advisories import Advisory, Range
from tooling.pins.pin import DEBIAN_RELEASES, INTEL_BINDINGS, Ccl, Pin, Source

VERSIONS_FILE = IMAGES / "versions.toml"

PIN_KEYS = ("debian", "python", "tcmalloc_package", "ccl", "sources", "packages")
OPTIONAL_PIN_KEYS = ("base", "oneccl", "build_packages")
REQUIRED_PACKAGES = (
    "torch",
    "transformers",
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
IPEX = "intel-extension-for-pytorch"
ONECCL = "oneccl-devel"
OPTIONAL_PACKAGES = (
    "accelerate",
    "evaluate",
    "peft",
    "protobuf",
    "sentencepiece",
    IPEX,
    INTEL_BINDINGS,
    # What old rows need held back, because their packages do not bound it themselves.
    "dill",
    "fsspec",
    "huggingface-hub",
    "multiprocess",
    "pandas",
    "pyarrow",
    "setuptools",
)

VERSION = re.compile(r"[0-9]+(\.[0-9]+)*(\.?(post|rc|a|b)[0-9]+)?(\+[a-z0-9.]+)?")
_URL = re.compile(r"(https?|file)://\S+")
_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,63}")
_BASE = re.compile(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}")
_APT_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")
_SENTENCE = re.compile(r"\S.*\S")
_ADVISORY = re.compile(r"CVE-[0-9]{4}-[0-9]{4,}|GHSA(-[0-9a-z]{4}){3}|[\w.-]+/[\w.-]+#[0-9]+")
EXACT_VERSION = "an exact version such as 2.13.0+cpu"


@dataclass(frozen=True)
class Matrix:
    """Every pin, in the file's order, and the one that is built when none is named.

    `refused`: the reason why a row does not exist, by the name that a user may ask for.
    """

    default: str
    pins: Mapping[str, Pin]
    refused: Mapping[str, str] = field(default_factory=dict)

    def pin(self, name: str | None = None) -> Pin:
        """The pin called `name`, or the default one. Raises UsageError with the choices."""
        chosen = self.default if name is None else name
        if chosen in self.refused:
            raise UsageError(f"pin {chosen!r} does not exist: {self.refused[chosen]}")
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
    check.keys(where, document, ("default", "indexes", "pins"), ("pages", "refused", "advisories"))
    sources = _sources(where, "indexes", document["indexes"], is_page=False)
    sources |= _sources(where, "pages", document.get("pages", {}), is_page=True)
    advisories = _advisories(where, document.get("advisories", []))
    rows = check.table(where, "pins", document["pins"])
    for name in rows:
        check.text(where, "a pin's name", name, _NAME, "what an image's tag may hold, such as 2.13")
    pins = {name: _pin(f"{where}, pin {name}", name, row, sources, advisories) for name, row in rows.items()}
    check.choice(where, "default", document["default"], tuple(pins))
    refused = _refused(where, document.get("refused", {}), tuple(pins))
    return Matrix(document["default"], MappingProxyType(pins), MappingProxyType(refused))


def _sources(where: str, key: str, value: Any, is_page: bool) -> dict[str, Source]:
    urls = check.table(where, key, value)
    for name, url in urls.items():
        check.text(f"{where}, {key}", name, url, _URL, "a URL such as https://HOST/PATH")
    return {name: Source(url, is_page) for name, url in urls.items()}


def _advisories(where: str, value: Any) -> tuple[Advisory, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: advisories is {type(value).__name__}, expected a list of tables")
    made = []
    for number, row in enumerate(value, start=1):
        place = f"{where}, advisory {number}"
        check.keys(place, check.table(where, f"advisory {number}", row), ("id", "affected", "summary"))
        check.text(place, "id", row["id"], _ADVISORY, "CVE-YEAR-NUMBER, GHSA-… or OWNER/REPOSITORY#NUMBER")
        check.text(place, "summary", row["summary"], _SENTENCE, "a sentence")
        made.append(Advisory(row["id"], row["summary"], _ranges(place, row["affected"])))
    return tuple(made)


def _ranges(where: str, value: Any) -> tuple[Range, ...]:
    ranges = []
    for package, bounds in check.table(where, "affected", value).items():
        place = f"{where}, affected {package}"
        check.choice(where, "affected", package, (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES))
        check.keys(place, check.table(where, f"affected {package}", bounds), (), ("introduced", "fixed"))
        for key, version in bounds.items():
            check.text(place, key, version, VERSION, EXACT_VERSION)
        ranges.append(Range(package, bounds.get("introduced"), bounds.get("fixed")))
    if not ranges:
        raise UsageError(f"{where}: affected is empty, expected a range of versions for a package")
    return tuple(ranges)


def _refused(where: str, value: Any, pins: tuple[str, ...]) -> dict[str, str]:
    refused = {}
    for name, row in check.table(where, "refused", value).items():
        place = f"{where}, refused {name}"
        check.keys(place, check.table(where, f"refused {name}", row), ("why", "nearest"))
        check.text(place, "why", row["why"], _SENTENCE, "a sentence")
        check.choice(place, "nearest", row["nearest"], pins)
        refused[name] = f"{row['why']}; the nearest is {row['nearest']}"
    return refused


def _pin(where: str, name: str, row: Any, sources: dict[str, Source], advisories: tuple[Advisory, ...]) -> Pin:
    row = check.table(where, name, row)
    check.keys(where, row, PIN_KEYS, OPTIONAL_PIN_KEYS)
    check.choice(where, "debian", row["debian"], tuple(DEBIAN_RELEASES))
    release = DEBIAN_RELEASES[row["debian"]]
    if row["python"] != release.python:
        raise UsageError(
            f"{where}: python = {row['python']!r}, but Debian {release.number} has {release.python}: "
            "change one of the two"
        )
    check.choice(where, "ccl", row["ccl"], (Ccl.INTEL, Ccl.BINDINGS))
    packages = _packages(where, "packages", row["packages"], REQUIRED_PACKAGES, OPTIONAL_PACKAGES)
    ccl, build_packages, oneccl = _ccl(where, row)
    chosen = check.table(where, "sources", row["sources"])
    check.keys(f"{where}, sources", chosen, ("torch",), tuple(packages))
    for package, source in chosen.items():
        check.choice(f"{where}, sources", package, source, tuple(sources))
    if "base" in row:
        check.text(where, "base", row["base"], _BASE, "an image reference with its digest, name@sha256:…")
    check.text(where, "tcmalloc_package", row["tcmalloc_package"], _APT_PACKAGE, "an apt package's name")
    return Pin(
        name=name,
        debian=release,
        python=row["python"],
        tcmalloc_package=row["tcmalloc_package"],
        ccl=ccl,
        oneccl=oneccl,
        packages=packages,
        build_packages=build_packages,
        sources=MappingProxyType({package: sources[source] for package, source in chosen.items()}),
        base=row.get("base", ""),
        known_advisories=advisories,
    )


def _ccl(where: str, row: dict[str, Any]) -> tuple[Ccl, Mapping[str, str], str]:
    """Either Intel's wheel with the oneCCL that it holds, or what the project's own backend is compiled from."""
    ccl = Ccl(row["ccl"])
    wanted, other = ("oneccl", "build_packages") if ccl is Ccl.INTEL else ("build_packages", "oneccl")
    if wanted not in row or other in row:
        raise UsageError(f"{where}: ccl = {row['ccl']!r} takes the key {wanted} and not {other}")
    if ccl is Ccl.INTEL:
        check.text(where, "oneccl", row["oneccl"], VERSION, EXACT_VERSION)
        return ccl, MappingProxyType({}), row["oneccl"]
    build_packages = _packages(where, "build_packages", row["build_packages"], (ONECCL,), ())
    return ccl, build_packages, build_packages[ONECCL]


def _packages(
    where: str, key: str, value: Any, required: tuple[str, ...], optional: tuple[str, ...]
) -> Mapping[str, str]:
    packages = check.table(where, key, value)
    check.keys(f"{where}, {key}", packages, required, optional)
    for package, version in packages.items():
        check.text(f"{where}, {key}", package, version, VERSION, EXACT_VERSION)
    return MappingProxyType(dict(packages))
