"""`./inv test`: the checks first, because they are quick, then the tests from the quick to the slow."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from invoke.exceptions import Exit

from tooling.basis import files
from tooling.basis.paths import CACHE, ROOT
from tooling.basis.say import say
from tooling.engine import api
from tooling.image import build
from tooling.pins import parse

CHECKS = (
    ("ruff", "check", "--quiet", "."),
    ("ruff", "format", "--check", "--quiet", "."),
    ("mypy",),
)
# A superset of tooling/requirements.txt, with the same versions.
REQUIREMENTS = ROOT / "tooling" / "requirements-test.txt"
# Processes for the unit tests, at most: with more, starting them takes longer than the tests.
_MAX_PROCESSES = 4


def run(unit_only: bool) -> None:
    """Runs ruff, mypy and pytest; the exit code is the first one that is not 0."""
    install_requirements()
    for check in CHECKS:
        say("$ " + " ".join(check))
        _call("-m", *check)
    if not unit_only:
        api.ensure(say)
        build.build(parse.load().pin(), say)
    # One process more than cores, because some unit tests wait. Containers need all cores for one test.
    processes = min((os.cpu_count() or 1) + 1, _MAX_PROCESSES)
    _pytest("tests/unit", f"--numprocesses={processes}", "--dist=loadfile")
    if not unit_only:
        _pytest("tests/image", "tests/cluster")


def _pytest(*arguments: str) -> None:
    say("$ pytest " + " ".join(arguments))
    _call("-m", "pytest", *arguments)


def install_requirements() -> None:
    """Adds to ./inv's own .venv what only the tests and checks need, once for each state of their lock."""
    stamp = Path(sys.prefix) / "stamp-test"
    with files.locked(CACHE / "venv-test.lock", lambda: say("another ./inv test is installing")):
        wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
        if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
            return
        say(f"installing {REQUIREMENTS.relative_to(ROOT)}")
        _call("-m", "pip", "install", "-qq", "--require-hashes", "-r", str(REQUIREMENTS))
        stamp.write_text(wanted, encoding="ascii")


def _call(*arguments: str) -> None:
    returncode = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode
    if returncode != 0:
        raise Exit(code=returncode)
