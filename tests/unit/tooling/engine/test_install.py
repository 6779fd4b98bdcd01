"""apt's commands, sources and messages for Docker's packages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tooling.engine.findings import BOOKWORM
from tooling.basis.errors import UsageError
from tooling.engine.apt_sources import APT, Source
from tooling.engine.host import Host
from tooling.engine.install import UPDATE, apt_cause, apt_files, install_argv, parse_candidate

POLICY = "docker.io:\n  Installed: (none)\n  Candidate: {}\n  Version table:\n"
MIRROR = Source(("deb",), ("http://mirror.example/debian",), ("bookworm",), ("main",))


def test_apt_installs_the_given_packages_without_recommendations_and_waits_for_its_lock() -> None:
    assert UPDATE == ("apt-get", "-o", "DPkg::Lock::Timeout=120", "update")
    assert install_argv(("docker.io", "docker-cli")) == (
        *("apt-get", "-o", "DPkg::Lock::Timeout=120"),
        *("install", "-y", "--no-install-recommends", "docker.io", "docker-cli"),
    )


def test_debian_12_gets_a_pinned_source_of_debian_13() -> None:
    files = apt_files(("docker.io",), BOOKWORM, [MIRROR], POLICY.format("20.10.24+dfsg1-1+deb12u1+b6"))
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
def test_elsewhere_no_source_is_added(packages: tuple[str, ...], host: Host, candidate: str) -> None:
    assert apt_files(packages, host, [MIRROR], POLICY.format(candidate)) == {}


def test_a_debian_12_without_a_source_of_its_own_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="found no apt source of bookworm main"):
        apt_files(("docker.io",), BOOKWORM, [], "")


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
