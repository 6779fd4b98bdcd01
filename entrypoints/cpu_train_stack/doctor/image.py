"""The image's packages: their versions, compared with the pin's lock file, and their known security advisories."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.checks import Check, CheckStatus

# images/scripts/install-entrypoints writes its files.
ROOT = Path("/opt/cpu-train-stack")
LOCK = ROOT / "lock.txt"
ADVISORIES = ROOT / "advisories.json"
# If the backend is not in the lock file, it was compiled for the image's torch and has the same version.
BACKEND = "oneccl-bind-pt"


def parse_lock(lock: str) -> dict[str, str]:
    """Version by canonical name, from pip's requirements format."""
    return {
        canonical(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s\\]+)", lock, re.MULTILINE)
    }


def canonical(name: str) -> str:
    """A distribution's name in its normalized form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Version by canonical name of every distribution that this interpreter sees."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(canonical(name), distribution.version)  # the first on sys.path is imported
    return found


def versions(pin: str, locked: Mapping[str, str], found: Mapping[str, str]) -> Check:
    missing = sorted(name for name in locked if name not in found)
    other = sorted(name for name in locked if found.get(name, locked[name]) != locked[name])
    torch = found.get("torch", "").partition("+")[0]
    if missing:
        fix = "rebuild the image from its pin"
        return Check("versions", CheckStatus.ERROR, f"pin {pin}: {', '.join(missing)} missing", fix)
    if BACKEND in found and BACKEND not in locked and found[BACKEND] != torch:
        detail = f"pin {pin}: {BACKEND} {found[BACKEND]} is built for torch {found[BACKEND]}, found torch {torch}"
        return Check(
            "versions", CheckStatus.ERROR, detail, f"install torch {found[BACKEND]}, or rebuild the image"
        )
    if other:
        versions = ", ".join(f"{name} {found[name]} (the pin has {locked[name]})" for name in other)
        fix = "use the pin's versions: no other combination was tested"
        return Check("versions", CheckStatus.WARNING, f"pin {pin}, but {versions}", fix)
    main = ", ".join(f"{name} {found[name]}" for name in ("torch", "transformers", BACKEND) if name in found)
    return Check("versions", CheckStatus.OK, f"pin {pin}: all {len(locked)} packages match the lock file; {main}")


def examine_versions() -> list[Check]:
    pin = os.environ.get(contract.PIN)
    if not pin or not LOCK.is_file():
        detail = f"no pin to compare with, expected {contract.PIN} and {LOCK}"
        return [Check("versions", CheckStatus.WARNING, detail, "use an image built by ./inv build")]
    return [versions(pin, parse_lock(LOCK.read_text(encoding="utf-8")), installed())]


def examine_advisories() -> list[Check]:
    """A warning for each known advisory: training works; use only files from sources that you trust."""
    if not ADVISORIES.is_file():
        fix = "use an image built by ./inv build"
        return [Check("advisories", CheckStatus.WARNING, f"unknown: {ADVISORIES} does not exist", fix)]
    known = json.loads(ADVISORIES.read_text(encoding="utf-8"))
    if not known:
        return [Check("advisories", CheckStatus.OK, "none known for the pin's versions when the image was built")]
    return [Check("advisories", CheckStatus.WARNING, advisory["detail"], advisory["fix"]) for advisory in known]
