"""Installs Debian's packages of Docker.

Debian 12's Docker is too old. There, an apt source for Debian 13 is added, pinned to the packages of Docker. It
has the mirror and the key of the host's apt source for Debian 12.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import write_with_folder
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.engine.decide import MINIMUM_ENGINE
from tooling.engine.find import EngineHost, version_tuple

APT = Path("/etc/apt")

# Without runc: Debian 13's needs a newer libc, and Debian 12's works with these packages.
NEWER_PACKAGES = ("docker.io", "docker-cli", "docker-compose", "docker-buildx", "containerd")
OWN_SUITE, NEWER_SUITE = "bookworm", "trixie"
NAME = "cpu-train-stack-trixie"
APT_LOG = CACHE / "apt.log"
_APT_GET = ("apt-get", "-o", "DPkg::Lock::Timeout=120")
# apt translates its messages, and apt-cache the names of its fields.
_ENGLISH = {"LC_ALL": "C.UTF-8"}
UPDATE = (*_APT_GET, "update")
# One entry of sources.list(5): the fields of the deb822 format, such as "Signed-By", with lower-case names.
Source = Mapping[str, str]
# An entry in the one-line format: `deb [signed-by=KEYRING arch=amd64] URI SUITE COMPONENT...`.
_ONE_LINE = re.compile(r"(deb|deb-src)\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)(.*)")


def install(packages: Sequence[str], host: EngineHost) -> None:
    """Run apt-get, with one line for each step. If it fails, remove the added files and raise UsageError."""
    files = apt_files(packages, host, read_sources(), read_policy())
    if files:
        say(
            f"writing {' and '.join(map(str, files))}: Docker's packages of Debian 13 from this host's mirror, "
            "and no other package of Debian 13"
        )
    for path, text in files.items():
        write_with_folder(path, text)
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


def read_policy() -> str:
    """The output of `apt-cache policy docker.io`."""
    argv, environ = ("apt-cache", "policy", "docker.io"), {**os.environ, **_ENGLISH}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=environ).stdout


def _apt(argv: Sequence[str]) -> None:
    environ = {**os.environ, **_ENGLISH, "DEBIAN_FRONTEND": "noninteractive"}
    with APT_LOG.open("a+", encoding="utf-8", errors="replace") as log:
        done = subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
        log.seek(0)
        if done.returncode:
            raise UsageError(f"{' '.join([argv[0], *argv[3:]])} failed: {apt_cause(log.read())} (see {APT_LOG})")


def install_argv(packages: Sequence[str]) -> tuple[str, ...]:
    """Installs these packages and their dependencies, without recommended packages and without other upgrades."""
    return (*_APT_GET, "install", "-y", "--no-install-recommends", *packages)


def apt_cause(log: str) -> str:
    """The cause in apt's output, in one line: a failed download first, because other errors follow from it."""
    lines = log.splitlines()
    for start in ("W: Failed to fetch", "E: Failed to fetch", "E:"):
        for line in lines:
            if line.startswith(start):
                return line[2:].strip()
    return lines[-1].strip() if lines else "no output"


def apt_files(
    packages: Sequence[str], host: EngineHost, sources: Sequence[Source], policy: str
) -> Mapping[Path, str]:
    """The files to write under /etc/apt, text by path. None, unless Debian 12's Docker would be installed.

    `policy` is the output of `apt-cache policy docker.io`: the host may already have a source of newer packages.
    """
    if host.version != 12 or not set(packages) & set(NEWER_PACKAGES):
        return {}
    if parse_candidate(policy) >= MINIMUM_ENGINE:
        return {}
    source = newer_release(sources)
    if source is None:
        raise UsageError(
            f"found no apt source of {OWN_SUITE} main under {APT}: its mirror would have newer Docker packages; "
            "add such a source, or install Docker Engine >= 25: https://docs.docker.com/engine/install/debian/"
        )
    return {
        APT / "sources.list.d" / f"{NAME}.sources": source,
        APT / "preferences.d" / NAME: preferences(),
    }


def parse_candidate(policy: str) -> tuple[int, ...]:
    """The version that apt would install, from `apt-cache policy PACKAGE`. Empty if there is none."""
    match = re.search(r"^\s*Candidate: (\S+)", policy, re.MULTILINE)
    return version_tuple(match[1]) if match else ()


def newer_release(sources: Iterable[Source]) -> str | None:
    """The text of a *.sources file for NEWER_SUITE, with mirror and key of the host's entry for OWN_SUITE.

    None if the host has no such entry. `Trusted: yes` is never copied: apt checks the signature.
    """
    wanted = {"types": "deb", "suites": OWN_SUITE, "components": "main"}
    for source in sources:
        if all(word in source.get(field, "").split() for field, word in wanted.items()):
            uris = " ".join(source["uris"].split())
            lines = ["Types: deb", f"URIs: {uris}", f"Suites: {NEWER_SUITE}", "Components: main"]
            if key := source.get("signed-by"):
                lines.append(f"Signed-By: {key}")
            return "\n".join(lines) + "\n"
    return None


def preferences() -> str:
    """The text of an apt_preferences(5) file: from NEWER_SUITE, apt installs NEWER_PACKAGES only."""
    return (
        f"Package: *\nPin: release n={NEWER_SUITE}\nPin-Priority: -1\n\n"
        f"Package: {' '.join(NEWER_PACKAGES)}\nPin: release n={NEWER_SUITE}\nPin-Priority: 500\n"
    )


def read_sources(apt: Path = APT) -> list[Source]:
    """The apt sources of the host: every file that apt reads under /etc/apt."""
    parts = sorted((apt / "sources.list.d").glob("*")) if (apt / "sources.list.d").is_dir() else []
    found: list[Source] = []
    for path in [apt / "sources.list", *parts]:
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(encoding="utf-8")
            found += parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text)
    return found


def parse_one_line(text: str) -> list[Source]:
    """The entries of a *.list file."""
    found: list[Source] = []
    for line in text.splitlines():
        if entry := _ONE_LINE.fullmatch(line.partition("#")[0].strip()):
            types, options, uri, suite, components = entry.groups(default="")
            source = {"types": types, "uris": uri, "suites": suite, "components": components.strip()}
            found.append(source | dict(option.partition("=")[::2] for option in options.split()))
    return found


def parse_deb822(text: str) -> list[Source]:
    """The entries of a *.sources file that are not disabled."""
    found: list[Source] = []
    for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        fields = HeaderParser().parsestr(stanza.lstrip())
        source = {name.lower(): value.strip() for name, value in fields.items()}
        enabled = source.get("enabled", "yes").lower() not in ("no", "false", "0", "off")
        if enabled and source.keys() >= {"uris", "suites"}:
            found.append(source)
    return found
