"""Vulnerabilities in OSV's format (https://ossf.github.io/osv-schema), from the files of osv.dev's dump.

Only packages of PyPI are read, and of their ranges those of versions, not those of commits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json, read_given

ECOSYSTEM = "PyPI"
_SUMMARY_CHARACTERS = 100


@dataclass(frozen=True)
class Affected:
    """The affected versions of a package: `versions`, and each range of events (kind, version) in their order."""

    package: str
    versions: frozenset[str]
    ranges: tuple[tuple[tuple[str, str], ...], ...]

    def includes(self, version: Version) -> bool:
        """Whether a version is affected."""
        listed = any(_parsed(text) == version for text in self.versions)
        return listed or any(_is_affected(version, events) for events in self.ranges)

    def fixes(self, version: Version) -> list[str]:
        """The next version that fixes each range."""
        later = [
            [text for kind, text in events if kind == "fixed" and (found := _parsed(text)) and found > version]
            for events in self.ranges
        ]
        return sorted({min(texts, key=Version) for texts in later if texts}, key=Version)


@dataclass(frozen=True)
class OsvRecord:
    """One vulnerability. `ids`: its own identifier first, then its aliases, such as a CVE number."""

    ids: tuple[str, ...]
    summary: str
    affected: tuple[Affected, ...]


@dataclass(frozen=True)
class KnownVulnerability:
    """A vulnerability of a version. `fixed`: the versions that fix it."""

    package: str
    version: str
    ids: tuple[str, ...]
    summary: str
    fixed: tuple[str, ...]


def read(folder: Path) -> list[OsvRecord]:
    """The records of all .json files in a folder, but the withdrawn ones. Raises UsageError."""
    if not folder.is_dir():
        fix = "unpack it first" if folder.is_file() else "expected a folder with osv.dev's dump of PyPI, unpacked"
        raise UsageError(f"--osv {folder} is not a folder: {fix}")
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise UsageError(f"--osv {folder} has no .json files, expected osv.dev's dump of PyPI, unpacked")
    return [record for file in files if (record := _read_file(file))]


def find(versions: Mapping[str, str], records: Iterable[OsvRecord]) -> list[KnownVulnerability]:
    """The vulnerabilities of packages (versions by canonical name), each once, whatever its identifiers."""
    found: dict[str, list[KnownVulnerability]] = {}
    for record in records:
        for affected in record.affected:
            version = versions.get(affected.package)
            if version is None:
                continue
            # A local version such as 2.13.0+cpu is affected as 2.13.0 is.
            public = Version(Version(version).public)
            others = found.setdefault(affected.package, [])
            if any(set(record.ids) & set(other.ids) for other in others) or not affected.includes(public):
                continue
            fixes = tuple(affected.fixes(public))
            others.append(KnownVulnerability(affected.package, version, record.ids, record.summary, fixes))
    return [finding for package in sorted(found) for finding in found[package]]


def _read_file(file: Path) -> OsvRecord | None:
    try:
        document = parse_json(read_given(file))
        if document.get("withdrawn"):
            return None
        text = document.get("summary") or document.get("details") or ""
        return OsvRecord(
            ids=(document["id"], *document.get("aliases", ())),
            summary=_shortened(text),
            affected=tuple(map(_affected, filter(_is_of_pypi, document.get("affected", ())))),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UsageError(f"--osv: {file} is not a record of OSV ({why})") from None


def _is_of_pypi(affected: Mapping[str, Any]) -> bool:
    package = affected.get("package", {})
    return bool(package.get("ecosystem") == ECOSYSTEM)


def _affected(document: Mapping[str, Any]) -> Affected:
    ranges = [entry["events"] for entry in document.get("ranges", ()) if entry["type"] != "GIT"]
    return Affected(
        package=canonicalize_name(document["package"]["name"]),
        versions=frozenset(document.get("versions", ())),
        ranges=tuple(tuple(pair for event in events for pair in event.items()) for events in ranges),
    )


def _is_affected(version: Version, events: Sequence[tuple[str, str]]) -> bool:
    """Whether the last event that a version has reached introduces the vulnerability."""
    reached = []
    for kind, text in events:
        # "0" is before every version, including 0.dev1. A version that pip cannot read is none of a lock's.
        at = None if text == "0" else _parsed(text)
        if text != "0" and at is None:
            continue
        if at is None or version > at or (version == at and kind != "last_affected"):
            reached.append((at is not None, at or version, kind == "introduced"))
    return bool(reached) and max(reached)[2]


def _parsed(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SUMMARY_CHARACTERS else f"{line[: _SUMMARY_CHARACTERS - 1]}…"
