"""The version matrix: images/versions.toml parsed into frozen, validated pins.

A pin is one row: a Debian release, its Python and exact versions of packages. The versions of their dependencies
are in the pin's lock (tooling.wheels.locks). tooling.pins.rules decides whether the packages fit together.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.paths import IMAGES
from tooling.pins.advisories import Advisory, Range
from tooling.pins.pin import (
    DEBIAN_RELEASES,
    EXACT_VERSION,
    ONECCL,
    OPTIONAL_PACKAGES,
    REQUIRED_PACKAGES,
    VERSION,
    Ccl,
    IntelWheel,
    Pin,
    Source,
)

VERSIONS_FILE = IMAGES / "versions.toml"

_Parsed = TypeVar("_Parsed")

_PIN_KEYS = ("debian", "python", "tcmalloc_package", "sources", "packages", "build_packages")
_OPTIONAL_PIN_KEYS = ("base", "intel")
_URL = re.compile(r"(https?|file)://\S+")
_PIN_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,63}")
_BASE = re.compile(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}")
_APT_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")
_SENTENCE = re.compile(r"\S.*\S")
_ADVISORY = re.compile(r"CVE-[0-9]{4}-[0-9]{4,}|GHSA(-[0-9a-z]{4}){3}|[\w.-]+/[\w.-]+#[0-9]+")


@dataclass(frozen=True)
class Matrix:
    """Every pin in the file's order, and the name of the default pin.

    `refused`: the reason why a row does not exist, by the name that a user may ask for.
    """

    default: str
    pins: Mapping[str, Pin]
    refused: Mapping[str, str] = field(default_factory=dict)

    def pin(self, name: str | None = None) -> Pin:
        """The pin called `name`, or the default pin. Raises UsageError with the choices."""
        chosen = self.default if name is None else name
        if chosen in self.refused:
            raise UsageError(f"pin {chosen!r} does not exist: {self.refused[chosen]}")
        if chosen not in self.pins:
            raise UsageError(f"unknown pin {chosen!r}: choose one of {', '.join(self.pins)}")
        return self.pins[chosen]


def load(path: Path = VERSIONS_FILE) -> Matrix:
    """Read and validate the matrix. Raises UsageError with a line for each row that has a mistake."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path.name} not found: expected {path}; restore it from the repository") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}") from None
    where = path.name
    _table(where, document, ("default", "indexes", "pins"), ("pages", "refused", "advisories"))
    sources = {
        name: Source(url, is_page=key == "pages")
        for key in ("indexes", "pages")
        for name, url in _texts(f"{where}, {key}", document.get(key, {}), _URL, "a URL such as https://HOST/PATH")
    }
    listed = document.get("advisories", [])
    if not isinstance(listed, list):
        raise UsageError(f"{where}: advisories is {type(listed).__name__}, expected a list of tables")
    rows = _table(f"{where}, pins", document["pins"])
    _check_choice(where, "default", document["default"], tuple(rows))
    mistakes: list[str] = []
    numbered = {f"advisory {number}": row for number, row in enumerate(listed, start=1)}
    advisories = tuple(_parse_each(where, numbered, _advisory, mistakes).values())
    pins = _parse_each(f"{where}, pin", rows, partial(_pin, sources, advisories), mistakes)
    refused = _table(f"{where}, refused", document.get("refused", {}))
    reasons = _parse_each(f"{where}, refused", refused, partial(_refusal, tuple(rows)), mistakes)
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return Matrix(document["default"], MappingProxyType(pins), MappingProxyType(reasons))


def _parse_each(
    where: str, tables: Mapping[str, Any], parse: Callable[[str, str, Any], _Parsed], mistakes: list[str]
) -> dict[str, _Parsed]:
    """The result of `parse` for each table. Adds a line to `mistakes` for each table that raises UsageError."""
    results = {}
    for name, row in tables.items():
        try:
            results[name] = parse(f"{where} {name}", name, row)
        except UsageError as error:
            mistakes.append(str(error))
    return results


def _advisory(where: str, _name: str, row: Any) -> Advisory:
    _table(where, row, ("id", "affected", "summary"))
    _check_text(where, "id", row["id"], _ADVISORY, "CVE-YEAR-NUMBER, GHSA-… or OWNER/REPOSITORY#NUMBER")
    _check_text(where, "summary", row["summary"], _SENTENCE, "a sentence")
    ranges = []
    for package, bounds in _table(f"{where}, affected", row["affected"]).items():
        _check_choice(where, "affected", package, (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES))
        place = f"{where}, affected {package}"
        _table(place, bounds, (), ("introduced", "fixed"))
        versions = dict(_texts(place, bounds, VERSION, EXACT_VERSION))
        ranges.append(Range(package, versions.get("introduced"), versions.get("fixed")))
    if not ranges:
        raise UsageError(f"{where}: affected is empty, expected a range of versions for a package")
    return Advisory(row["id"], row["summary"], tuple(ranges))


def _refusal(pins: tuple[str, ...], where: str, _name: str, row: Any) -> str:
    _table(where, row, ("why", "nearest"))
    _check_text(where, "why", row["why"], _SENTENCE, "a sentence")
    _check_choice(where, "nearest", row["nearest"], pins)
    return f"{row['why']}; the nearest pin is {row['nearest']}"


def _pin(
    known_sources: Mapping[str, Source], advisories: tuple[Advisory, ...], where: str, name: str, row: Any
) -> Pin:
    _check_text(where, "a pin's name", name, _PIN_NAME, "characters of an image's tag, such as 2.13")
    _table(where, row, _PIN_KEYS, _OPTIONAL_PIN_KEYS)
    _check_choice(where, "debian", row["debian"], tuple(DEBIAN_RELEASES))
    release = DEBIAN_RELEASES[row["debian"]]
    if row["python"] != release.python:
        raise UsageError(
            f"{where}: python = {row['python']!r}, but Debian {release.number} has {release.python}: "
            "change python or debian"
        )
    packages = _packages(f"{where}, packages", row["packages"], REQUIRED_PACKAGES, OPTIONAL_PACKAGES)
    build_packages = _packages(f"{where}, build_packages", row["build_packages"], (ONECCL,))
    sources = _table(f"{where}, sources", row["sources"], ("torch",), tuple(packages))
    for package, source in sources.items():
        _check_choice(f"{where}, sources", package, source, tuple(known_sources))
    if "base" in row:
        _check_text(where, "base", row["base"], _BASE, "an image reference with its digest, name@sha256:…")
    _check_text(where, "tcmalloc_package", row["tcmalloc_package"], _APT_PACKAGE, "an apt package's name")
    return Pin(
        name=name,
        debian=release,
        python=row["python"],
        tcmalloc_package=row["tcmalloc_package"],
        ccl=Ccl.BINDINGS,
        oneccl=build_packages[ONECCL],
        packages=packages,
        build_packages=build_packages,
        sources=MappingProxyType({package: known_sources[source] for package, source in sources.items()}),
        base=row.get("base", ""),
        intel=_intel(f"{where}, intel", row["intel"], known_sources) if "intel" in row else None,
        known_advisories=advisories,
    )


def _intel(where: str, value: Any, known_sources: Mapping[str, Source]) -> IntelWheel:
    _table(where, value, ("version", "oneccl", "source"))
    for key in ("version", "oneccl"):
        _check_text(where, key, value[key], VERSION, EXACT_VERSION)
    _check_choice(where, "source", value["source"], tuple(known_sources))
    return IntelWheel(value["version"], value["oneccl"], known_sources[value["source"]])


def _packages(
    where: str, value: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Mapping[str, str]:
    _table(where, value, required, optional)
    return MappingProxyType(dict(_texts(where, value, VERSION, EXACT_VERSION)))


def _texts(where: str, value: Any, pattern: re.Pattern[str], expected: str) -> Iterable[tuple[str, str]]:
    """The items of a table whose values all match `pattern`."""
    items = _table(where, value).items()
    for key, text in items:
        _check_text(where, key, text, pattern, expected)
    return items


def _table(
    where: str, value: Any, required: tuple[str, ...] | None = None, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`value`, which must be a table with all keys of `required`. All other keys must be in `optional`.

    With `required` None, a table may have any keys.
    """
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {type(value).__name__}, expected a table")
    if required is None:
        return value
    known = required + optional
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UsageError(f"{where}: unknown key {key!r}{hint}: the keys are {', '.join(known)}")
    if missing := [key for key in required if key not in value]:
        raise UsageError(f"{where}: missing {', '.join(missing)}: the keys are {', '.join(known)}")
    return value


def _check_choice(where: str, key: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:  # in a tuple, because a TOML value may be a list, which has no hash
        raise UsageError(f"{where}: {key} = {value!r} is unknown: choose one of {', '.join(map(str, choices))}")


def _check_text(where: str, key: str, value: Any, pattern: re.Pattern[str], expected: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UsageError(f"{where}: {key} = {value!r}, expected {expected}")
