"""Reads the host's apt sources, and derives from them the pinned source of a newer release's Docker packages."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

APT = Path("/etc/apt")

# runc is not among them: Debian 13's needs a newer libc, and Debian 12's works with these.
NEWER_PACKAGES = ("docker.io", "docker-cli", "docker-compose", "docker-buildx", "containerd")


@dataclass(frozen=True)
class Source:
    """One entry of sources.list(5), in either of its two formats. `signed_by` is a path or a key, as found."""

    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None = None


def parse_one_line(text: str) -> list[Source]:
    """`deb [signed-by=KEYRING arch=amd64] URI SUITE COMPONENT...`, one a line."""
    found = []
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] not in ("deb", "deb-src"):
            continue
        options: dict[str, str] = {}
        rest = words[1:]
        if rest and rest[0].startswith("["):
            while rest:
                word = rest.pop(0)
                key, _, value = word.strip("[]").partition("=")
                options[key] = value
                if word.endswith("]"):
                    break
        if len(rest) >= 2:
            signed_by = options.get("signed-by")
            found.append(Source((words[0],), (rest[0],), (rest[1],), tuple(rest[2:]), signed_by))
    return found


def parse_deb822(text: str) -> list[Source]:
    """Stanzas of `Types: URIs: Suites: Components: Signed-By:`, as *.sources files have them."""
    found = []
    for stanza in _stanzas(text):
        fields = {key.lower(): value for key, value in stanza}
        if fields.get("enabled", "yes").strip().lower() in ("no", "false", "0", "off"):
            continue
        types, uris, suites, components = (
            tuple(fields.get(key, "").split()) for key in ("types", "uris", "suites", "components")
        )
        if uris and suites:
            found.append(Source(types, uris, suites, components, fields.get("signed-by", "").strip() or None))
    return found


def _stanzas(text: str) -> Iterable[list[tuple[str, str]]]:
    stanza: list[tuple[str, str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanza:
                yield stanza
            stanza = []
        elif line[0] in " \t" and stanza:  # a folded line belongs to the field above
            key, value = stanza[-1]
            stanza[-1] = (key, f"{value}\n{line.rstrip()}")
        else:
            key, _, value = line.partition(":")
            stanza.append((key.strip(), value.strip()))


def read_sources(apt: Path = APT) -> list[Source]:
    """Everything that apt itself would read under /etc/apt."""
    parts = sorted((apt / "sources.list.d").glob("*")) if (apt / "sources.list.d").is_dir() else []
    found: list[Source] = []
    for path in [apt / "sources.list", *parts]:
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(encoding="utf-8")
            found += parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text)
    return found


def newer_release(sources: Iterable[Source], *, own: str, newer: str) -> str | None:
    """A *.sources file for the suite `newer`, with the mirror and the key of the host's entry for `own`.

    None if the host has no such entry. `Trusted: yes` is never carried over: the signature is checked.
    """
    for source in sources:
        if "deb" in source.types and own in source.suites and "main" in source.components:
            lines = ["Types: deb", f"URIs: {' '.join(source.uris)}", f"Suites: {newer}", "Components: main"]
            if source.signed_by:
                lines.append(f"Signed-By: {source.signed_by}")
            return "\n".join(lines) + "\n"
    return None


def preferences(newer: str) -> str:
    """An apt_preferences(5) file: of the suite `newer`, NEWER_PACKAGES like any other, everything else never."""
    return (
        f"Package: *\nPin: release n={newer}\nPin-Priority: -1\n\n"
        f"Package: {' '.join(NEWER_PACKAGES)}\nPin: release n={newer}\nPin-Priority: 500\n"
    )
