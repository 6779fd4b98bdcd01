"""apt's sources in both formats, and the pinned source that is derived from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.engine.apt_sources import (
    Source,
    newer_release,
    parse_deb822,
    parse_one_line,
    preferences,
    read_sources,
)

MIRROR = "http://mirror.example/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def test_one_line_entries_are_read_with_and_without_options() -> None:
    text = f"""
        # deb {MIRROR} sid main
        deb {MIRROR} bookworm main contrib  # a comment
        deb [arch=amd64 signed-by={KEYRING}] {MIRROR} bookworm-updates main
        deb-src {MIRROR} bookworm main
        nonsense
    """
    assert parse_one_line(text) == [
        Source(("deb",), (MIRROR,), ("bookworm",), ("main", "contrib")),
        Source(("deb",), (MIRROR,), ("bookworm-updates",), ("main",), KEYRING),
        Source(("deb-src",), (MIRROR,), ("bookworm",), ("main",)),
    ]


def test_options_in_brackets_may_stand_apart_from_them() -> None:
    (source,) = parse_one_line(f"deb [ signed-by={KEYRING} ] {MIRROR} bookworm main")
    assert (source.uris, source.suites, source.signed_by) == ((MIRROR,), ("bookworm",), KEYRING)


def test_deb822_stanzas_are_read_with_comments_folded_lines_and_several_suites() -> None:
    text = f"""Types: deb
# a comment inside a stanza
URIs: {MIRROR}
Suites: bookworm bookworm-updates
Components: main
Signed-By: {KEYRING}

Types: deb
URIs:
 {MIRROR}
 http://second.example/debian
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: {MIRROR}
Suites: sid
Components: main
"""
    assert parse_deb822(text) == [
        Source(("deb",), (MIRROR,), ("bookworm", "bookworm-updates"), ("main",), KEYRING),
        Source(("deb",), (MIRROR, "http://second.example/debian"), ("bookworm-security",), ("main",)),
    ]


def test_both_formats_under_a_directory_are_read_and_disabled_files_are_not(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(f"deb {MIRROR} bookworm main\n")
    (parts / "b.sources").write_text(f"Types: deb\nURIs: {MIRROR}\nSuites: trixie\nComponents: main\n")
    (parts / "c.list.disabled").write_text(f"deb {MIRROR} sid main\n")
    assert [source.suites for source in read_sources(tmp_path)] == [("bookworm",), ("trixie",)]


def test_an_empty_directory_has_no_sources(tmp_path: Path) -> None:
    assert read_sources(tmp_path) == []


def test_the_newer_release_is_asked_of_the_hosts_own_mirror_with_its_own_key() -> None:
    sources = [
        Source(("deb",), ("http://security.example",), ("bookworm-security",), ("main",), "/other.gpg"),
        Source(("deb-src",), ("http://wrong.example",), ("bookworm",), ("main",), "/other.gpg"),
        Source(("deb",), (MIRROR,), ("bookworm", "bookworm-updates"), ("main", "contrib"), KEYRING),
    ]
    assert newer_release(sources, own="bookworm", newer="trixie") == (
        f"Types: deb\nURIs: {MIRROR}\nSuites: trixie\nComponents: main\nSigned-By: {KEYRING}\n"
    )


def test_a_key_that_stands_in_the_source_itself_stays_a_folded_field() -> None:
    text = f"Types: deb\nURIs: {MIRROR}\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN\n .\n abc\n"
    written = newer_release(parse_deb822(text), own="bookworm", newer="trixie")
    assert written is not None
    assert parse_deb822(written)[0].signed_by == parse_deb822(text)[0].signed_by == "-----BEGIN\n .\n abc"


@pytest.mark.parametrize("components", [(), ("contrib",)], ids=["none", "without main"])
def test_without_an_entry_for_main_there_is_no_newer_release(components: tuple[str, ...]) -> None:
    sources = [Source(("deb",), (MIRROR,), ("bookworm",), components)]
    assert newer_release(sources, own="bookworm", newer="trixie") is None


def test_everything_but_dockers_packages_is_pinned_away_and_runc_with_it() -> None:
    everything, dockers = preferences("trixie").strip().split("\n\n")
    assert everything.splitlines() == ["Package: *", "Pin: release n=trixie", "Pin-Priority: -1"]
    assert dockers.splitlines() == [
        "Package: docker.io docker-cli docker-compose docker-buildx containerd",
        "Pin: release n=trixie",
        "Pin-Priority: 500",
    ]
