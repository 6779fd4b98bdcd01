"""The installed packages, compared with the lock file of the image's pin."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from entrypoints import contract
from entrypoints.doctor.checks import Check, Status

LOCK = Path(__file__).resolve().parents[2] / "lock.txt"
# If it is not in the lock file, it was compiled for the image's torch and has the same version.
BACKEND = "oneccl-bind-pt"
NAME = "versions"


def parse(lock: str) -> dict[str, str]:
    """Version by canonical name, from pip's requirements format."""
    return {
        canonical(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s\\]+)", lock, re.MULTILINE)
    }


def canonical(name: str) -> str:
    """A distribution's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Version by canonical name of every distribution that this interpreter sees."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(canonical(name), distribution.version)  # the first on sys.path is what is imported
    return found


def judge(pin: str, locked: Mapping[str, str], found: Mapping[str, str]) -> Check:
    missing = sorted(name for name in locked if name not in found)
    other = sorted(name for name in locked if found.get(name, locked[name]) != locked[name])
    torch = found.get("torch", "").partition("+")[0]
    if missing:
        fix = "rebuild the image from its pin"
        return Check(NAME, Status.ERROR, f"pin {pin}: {', '.join(missing)} missing", fix)
    if BACKEND in found and BACKEND not in locked and found[BACKEND] != torch:
        detail = f"pin {pin}: {BACKEND} {found[BACKEND]} is built for that torch, found torch {torch}"
        return Check(NAME, Status.ERROR, detail, f"install torch {found[BACKEND]}, or rebuild the image")
    if other:
        versions = ", ".join(f"{name} {found[name]} (the pin has {locked[name]})" for name in other)
        fix = "use the pin's versions: no other combination was tested"
        return Check(NAME, Status.WARNING, f"pin {pin}, but {versions}", fix)
    main = ", ".join(f"{name} {found[name]}" for name in ("torch", "transformers", BACKEND) if name in found)
    return Check(NAME, Status.OK, f"pin {pin}: all {len(locked)} packages match the lock file; {main}")


def examine() -> list[Check]:
    pin = os.environ.get(contract.PIN)
    if not pin or not LOCK.is_file():
        detail = f"no pin to compare with, expected {contract.PIN} and {LOCK}"
        return [Check(NAME, Status.WARNING, detail, "use an image built by ./inv build")]
    return [judge(pin, parse(LOCK.read_text(encoding="utf-8")), installed())]
