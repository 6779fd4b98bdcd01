"""Docker's packages: apt's commands and messages, its sources, and the pinned source of Debian 13."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.engine.findings import BOOKWORM
from tooling.engine.find import EngineHost
from tooling.engine.install import (
    APT,
    UPDATE,
    Source,
    apt_cause,
    apt_files,
    install_argv,
    newer_release,
    parse_candidate,
    parse_deb822,
    parse_one_line,
    preferences,
    read_policy,
    read_sources,
)

POLICY = "docker.io:\n  Installed: (none)\n  Candidate: {}\n  Version table:\n"
MIRROR = "http://mirror.example/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def source(suites: str, components: str = "main", types: str = "deb", uris: str = MIRROR, **more: str) -> Source:
    """An entry. `signed_by` is the field Signed-By."""
    extra = {name.replace("_", "-"): value for name, value in more.items()}
    return {"types": types, "uris": uris, "suites": suites, "components": components, **extra}


BOOKWORM_MAIN = source("bookworm")


def test_apt_installs_the_given_packages_without_recommendations_and_waits_for_its_lock() -> None:
    assert UPDATE == ("apt-get", "-o", "DPkg::Lock::Timeout=120", "update")
    assert install_argv(("docker.io", "docker-cli")) == (
        *("apt-get", "-o", "DPkg::Lock::Timeout=120"),
        *("install", "-y", "--no-install-recommends", "docker.io", "docker-cli"),
    )


def test_debian_12_gets_a_pinned_source_of_debian_13() -> None:
    files = apt_files(("docker.io",), BOOKWORM, [BOOKWORM_MAIN], POLICY.format("20.10.24+dfsg1-1+deb12u1+b6"))
    assert sorted(files) == [
        APT / "preferences.d" / "cpu-train-stack-trixie",
        APT / "sources.list.d" / "cpu-train-stack-trixie.sources",
    ]
    assert "Suites: trixie\n" in files[APT / "sources.list.d" / "cpu-train-stack-trixie.sources"]


@pytest.mark.parametrize(
    ("packages", "host", "candidate"),
    [
        (("docker.io",), replace(BOOKWORM, version=13), "26.1.5+dfsg1-9"),
        (("docker.io",), replace(BOOKWORM, version=None), "(none)"),
        (("docker.io",), BOOKWORM, "26.1.5+dfsg1-9+deb13u1"),
        (("mmdebstrap",), BOOKWORM, "20.10.24+dfsg1"),
    ],
    ids=["Debian 13", "Debian testing", "Debian 12 with a newer source", "Debian 12's own package"],
)
def test_elsewhere_no_source_is_added(packages: tuple[str, ...], host: EngineHost, candidate: str) -> None:
    assert apt_files(packages, host, [BOOKWORM_MAIN], POLICY.format(candidate)) == {}


def test_a_debian_12_without_a_source_of_its_own_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="found no apt source of bookworm main"):
        apt_files(("docker.io",), BOOKWORM, [], "")


def test_the_candidate_is_read_in_every_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt_cache = tmp_path / "apt-cache"
    apt_cache.write_text(
        '#!/bin/sh\n[ "$LC_ALL" = C.UTF-8 ] && name=Candidate || name=Installationskandidat\n'
        'printf "docker.io:\\n  %s: 26.1.5+dfsg1-9\\n" $name\n'
    )
    apt_cache.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert parse_candidate(read_policy()) == (26, 1, 5)


def test_no_candidate_is_no_version() -> None:
    assert parse_candidate(POLICY.format("(none)")) == parse_candidate("") == ()


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("Hit:1\nE: Unable to locate package x\nE: second\n", "Unable to locate package x"),
        (
            "W: Failed to fetch URL  Could not connect\nE: Package 'x' has no candidate\n",
            "Failed to fetch URL  Could",
        ),
        ("something\nlast line\n", "last line"),
        ("", "no output"),
    ],
)
def test_apts_cause_is_what_came_first(log: str, cause: str) -> None:
    assert apt_cause(log).startswith(cause)


def test_one_line_entries_are_read_with_and_without_options() -> None:
    text = f"""
        # deb {MIRROR} sid main
        deb {MIRROR} bookworm main contrib  # a comment
        deb [arch=amd64 signed-by={KEYRING}] {MIRROR} bookworm-updates main
        deb-src {MIRROR} bookworm main
        nonsense
    """
    assert parse_one_line(text) == [
        source("bookworm", "main contrib"),
        source("bookworm-updates", arch="amd64", signed_by=KEYRING),
        source("bookworm", types="deb-src"),
    ]


def test_brackets_may_be_separated_from_the_options_by_spaces() -> None:
    assert parse_one_line(f"deb [ signed-by={KEYRING} ] {MIRROR} bookworm main") == [
        source("bookworm", signed_by=KEYRING)
    ]


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
        source("bookworm bookworm-updates", signed_by=KEYRING),
        source("bookworm-security", uris=f"{MIRROR}\n http://second.example/debian"),
    ]


def test_both_formats_under_a_directory_are_read_and_disabled_files_are_not(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(f"deb {MIRROR} bookworm main\n")
    (parts / "b.sources").write_text(f"Types: deb\nURIs: {MIRROR}\nSuites: trixie\nComponents: main\n")
    (parts / "c.list.disabled").write_text(f"deb {MIRROR} sid main\n")
    assert read_sources(tmp_path) == [source("bookworm"), source("trixie")]


def test_an_empty_directory_has_no_sources(tmp_path: Path) -> None:
    assert read_sources(tmp_path) == []


def test_the_newer_release_comes_from_the_hosts_mirror_with_the_same_key() -> None:
    sources = [
        source("bookworm-security", uris="http://security.example", signed_by="/other.gpg"),
        source("bookworm", types="deb-src", uris="http://wrong.example", signed_by="/other.gpg"),
        source(
            "bookworm bookworm-updates",
            "main contrib",
            uris=f"{MIRROR}\n{MIRROR}-2",
            signed_by=KEYRING,
            trusted="yes",
        ),
    ]
    assert newer_release(sources) == (
        f"Types: deb\nURIs: {MIRROR} {MIRROR}-2\nSuites: trixie\nComponents: main\nSigned-By: {KEYRING}\n"
    )


def test_a_key_inside_the_source_stays_a_folded_field() -> None:
    text = f"Types: deb\nURIs: {MIRROR}\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN\n .\n abc\n"
    written = newer_release(parse_deb822(text))
    assert written is not None
    assert parse_deb822(written)[0]["signed-by"] == parse_deb822(text)[0]["signed-by"] == "-----BEGIN\n .\n abc"


@pytest.mark.parametrize("components", ["", "contrib"], ids=["none", "without main"])
def test_without_an_entry_for_main_there_is_no_newer_release(components: str) -> None:
    assert newer_release([source("bookworm", components)]) is None


def test_only_dockers_packages_without_runc_are_installed_from_the_newer_release() -> None:
    everything, dockers = preferences().strip().split("\n\n")
    assert everything.splitlines() == ["Package: *", "Pin: release n=trixie", "Pin-Priority: -1"]
    assert dockers.splitlines() == [
        "Package: docker.io docker-cli docker-compose docker-buildx containerd",
        "Pin: release n=trixie",
        "Pin-Priority: 500",
    ]
