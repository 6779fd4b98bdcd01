"""What kind of machine this is: the facts that decide what may be installed and started here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT_DIRECTORY = Path("/")


@dataclass(frozen=True)
class Host:
    """`os_id` and `version` are os-release's ID and major VERSION_ID: None for Debian testing and unstable."""

    os_id: str
    version: int | None
    name: str
    root: bool
    systemd: bool
    docker_ce: bool = False
    ca_certificates: bool = True


def parse_os_release(text: str) -> dict[str, str]:
    """KEY=value lines in shell quoting, as os-release(5) has them; lines that are not so are left out."""
    fields = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            fields[key] = "".join(shlex.split(value))
    return fields


def host_from(release: Mapping[str, str], *, root: bool, root_directory: Path) -> Host:
    """Joins os-release with what a few paths under `root_directory` tell."""
    major = release.get("VERSION_ID", "").partition(".")[0]
    return Host(
        os_id=release.get("ID", "unknown"),
        version=int(major) if major.isdigit() else None,
        name=release.get("PRETTY_NAME") or release.get("ID", "an unknown system"),
        root=root,
        systemd=(root_directory / "run/systemd/system").is_dir(),  # sd_booted(3)'s own test
        docker_ce=(root_directory / "var/lib/dpkg/info/docker-ce.list").is_file(),
        ca_certificates=(root_directory / "etc/ssl/certs/ca-certificates.crt").is_file(),
    )


def read_host(root_directory: Path = ROOT_DIRECTORY) -> Host:
    """This machine."""
    for place in ("etc/os-release", "usr/lib/os-release"):
        path = root_directory / place
        if path.is_file():
            release = parse_os_release(path.read_text(encoding="utf-8"))
            break
    else:
        release = {"ID": os.uname().sysname.lower(), "PRETTY_NAME": os.uname().sysname}
    return host_from(release, root=os.geteuid() == 0, root_directory=root_directory)
