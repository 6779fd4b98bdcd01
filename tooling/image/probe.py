"""A program that lists the installed packages. The Python of an image, 3.9 or later, reads it from standard input.

Prints one JSON document: `pin` (of the entrypoints), `python`, `debian`, `apt` and `python_packages`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

DPKG_FIELDS = ("name", "version", "architecture", "source", "source_version")
DPKG_FORMAT = "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}\n"


def apt() -> list[dict[str, str]]:
    """Every Debian package, in dpkg's order."""
    argv = ["dpkg-query", "--show", "--showformat", DPKG_FORMAT]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [dict(zip(DPKG_FIELDS, line.split("\t"))) for line in listed.splitlines()]  # noqa: B905 - not in 3.9


def python_packages() -> list[dict[str, str]]:
    """Every distribution of this Python, by name. Of two with the same name, the one that Python imports."""
    found: dict[str, dict[str, str]] = {}
    for distribution in metadata.distributions():
        about = distribution.metadata
        name = about["Name"].lower().replace("_", "-").replace(".", "-")
        row = {
            "name": name,
            "version": distribution.version,
            "license": (about.get_all("License-Expression") or [""])[0],
        }
        found.setdefault(name, row)
    return [found[name] for name in sorted(found)]


def debian() -> str:
    """The number of the Debian release, from os-release."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    return fields["VERSION_ID"].strip('"')


if __name__ == "__main__":
    document = {
        "pin": os.environ.get("CPU_TRAIN_STACK_PIN", ""),
        "python": "{}.{}".format(*sys.version_info[:2]),
        "debian": debian(),
        "apt": apt(),
        "python_packages": python_packages(),
    }
    json.dump(document, sys.stdout)
