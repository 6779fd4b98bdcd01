"""`./inv test`: the checks first, because they are quick, then the tests from the quick to the slow."""

from __future__ import annotations

import subprocess
import sys

from invoke.exceptions import Exit

from tooling import engine, images, pins
from tooling.paths import ROOT
from tooling.say import say

CHECKS = (
    ("ruff", "check", "--quiet", "."),
    ("ruff", "format", "--check", "--quiet", "."),
    ("mypy",),
)


def run(unit_only: bool) -> None:
    """Runs ruff, mypy and pytest; the exit code is the first one that is not 0."""
    for check in CHECKS:
        say("$ " + " ".join(check))
        _call("-m", *check)
    if not unit_only:
        engine.ensure(say)
        images.build(pins.load().pin(), say)
    folders = ["tests/unit"] if unit_only else ["tests/unit", "tests/image", "tests/cluster"]
    say("$ pytest " + " ".join(folders))
    _call("-m", "pytest", *folders)


def _call(*arguments: str) -> None:
    returncode = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode
    if returncode != 0:
        raise Exit(code=returncode)
