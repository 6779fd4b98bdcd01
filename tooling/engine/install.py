"""Installs Debian's packages of Docker; on Debian 12, whose own are too old, those of Debian 13, pinned."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE
from tooling.basis.say import Say
from tooling.engine.apt_sources import APT, NEWER_PACKAGES, Source, newer_release, preferences, read_sources
from tooling.engine.decide import MINIMUM_ENGINE
from tooling.engine.find import version_tuple
from tooling.engine.host import Host

OWN_SUITE, NEWER_SUITE = "bookworm", "trixie"
NAME = "cpu-train-stack-trixie"
APT_LOG = CACHE / "apt.log"
_APT_GET = ("apt-get", "-o", "DPkg::Lock::Timeout=120")
UPDATE = (*_APT_GET, "update")


def install_argv(packages: Sequence[str]) -> tuple[str, ...]:
    """Exactly these and what they need: nothing recommended, nothing else upgraded."""
    return (*_APT_GET, "install", "-y", "--no-install-recommends", *packages)


def parse_candidate(policy: str) -> tuple[int, ...]:
    """The version that apt would install, from `apt-cache policy PACKAGE`; () for none."""
    match = re.search(r"^\s*Candidate: (\S+)", policy, re.MULTILINE)
    return version_tuple(match[1]) if match else ()


def apt_files(packages: Sequence[str], host: Host, sources: Sequence[Source], policy: str) -> Mapping[Path, str]:
    """What must be written under /etc/apt first, path to text: nothing, unless Debian 12's Docker is too old.

    `policy` is `apt-cache policy docker.io`: the host may have a newer release's packages already.
    """
    if host.version != 12 or not set(packages) & set(NEWER_PACKAGES):
        return {}
    if parse_candidate(policy) >= MINIMUM_ENGINE:
        return {}
    source = newer_release(sources, own=OWN_SUITE, newer=NEWER_SUITE)
    if source is None:
        raise UsageError(
            f"found no apt source of {OWN_SUITE} main under {APT}, whose mirror has Docker's newer packages; "
            "add one, or install Docker Engine >= 25: https://docs.docker.com/engine/install/debian/"
        )
    return {
        APT / "sources.list.d" / f"{NAME}.sources": source,
        APT / "preferences.d" / NAME: preferences(NEWER_SUITE),
    }


def apt_cause(log: str) -> str:
    """The first trouble in apt's output in one line: what it could not fetch goes before what follows from it."""
    lines = log.splitlines()
    for start in ("W: Failed to fetch", "E: Failed to fetch", "E:"):
        for line in lines:
            if line.startswith(start):
                return line[2:].strip()
    return lines[-1].strip() if lines else "no output"


def install(packages: Sequence[str], host: Host, say: Say) -> None:
    """Runs apt-get, saying so first. Errors: UsageError with apt's own cause; added sources are then removed."""
    policy = subprocess.run(
        ("apt-cache", "policy", "docker.io"), capture_output=True, text=True, check=False, timeout=60
    ).stdout
    files = apt_files(packages, host, read_sources(), policy)
    if files:
        say(
            f"writing {' and '.join(map(str, files))}: Debian 13's Docker packages from this host's own mirror, "
            "and nothing else of Debian 13"
        )
    for path, text in files.items():
        _write(path, text)
    CACHE.mkdir(parents=True, exist_ok=True)
    APT_LOG.write_text("", encoding="utf-8")
    try:
        say("running apt-get update")
        _apt(UPDATE)
        argv = install_argv(packages)
        say(f"running {' '.join(argv)}")
        _apt(argv)
    except BaseException:
        for path in files:  # a mirror that lacks the release would break every later apt-get update
            path.unlink(missing_ok=True)
        raise


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.half")
    half.write_text(text, encoding="utf-8")
    half.replace(path)


def _apt(argv: Sequence[str]) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    with APT_LOG.open("a+", encoding="utf-8", errors="replace") as log:
        done = subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
        log.seek(0)
        if done.returncode:
            raise UsageError(f"{' '.join([argv[0], *argv[3:]])} failed: {apt_cause(log.read())} (see {APT_LOG})")
