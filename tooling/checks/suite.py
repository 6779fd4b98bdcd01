"""`./inv test`: the checks first, because they are quick, then the unit tests, then the tests that need Docker."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from invoke.exceptions import Exit

from tooling.basis import files
from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE, ROOT, shown
from tooling.basis.say import say
from tooling.engine import api
from tooling.image.choice import Choice

CHECKS = (
    ("ruff", "check", "--quiet", "."),
    ("ruff", "format", "--check", "--quiet", "."),
    ("mypy",),
)
# A superset of tooling/requirements.txt, with the same versions.
REQUIREMENTS = ROOT / "tooling" / "requirements-test.txt"
PARTS = ("unit", "image", "cluster", "emulated")
TESTS = ROOT / "tests"
# It compares the speed of ranks. Other tests on the same cores slow down some ranks more than others.
_ALONE = "tests/cluster/test_stragglers.py"
# With more processes, their start takes longer than the unit tests.
_MAX_PROCESSES = 4
# The memory of each process that runs tests in containers: a test trains with two to four ranks.
_MEMORY_BYTES = 4 << 30


def run(part: str | None = None) -> None:
    """Runs ruff, mypy and all tests, or one part: one of PARTS (`unit` with ruff and mypy), or a test file.

    Raises Exit with the first exit code that is not 0.
    """
    file = None if part is None or part in PARTS else _test_file(part)
    install_requirements()
    if part in (None, "unit"):
        for check in CHECKS:
            say("$ " + " ".join(check))
            _call("-m", *check)
    if part != "unit" and not (file and file.startswith("tests/unit/")):
        Choice(engine=api.DOCKER).ensure()
    if file:
        _pytest(file)
        return
    # One process more than cores, because some tests wait.
    processes = min((os.cpu_count() or 1) + 1, _MAX_PROCESSES)
    if part in (None, "unit"):
        _pytest("tests/unit", f"--numprocesses={processes}", "--dist=loadfile")
    if part in (None, "cluster"):
        _pytest(_ALONE)
    # The tests of clusters first: their files take longest, and a long file at the end would run alone.
    slow = [f"tests/{name}" for name in ("cluster", "image", "emulated") if part in (None, name)]
    if slow:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        processes = max(1, min(processes, memory // _MEMORY_BYTES))
        spread = (f"--numprocesses={processes}", "--dist=loadfile", "--no-loadscope-reorder")
        _pytest(*slow, f"--ignore={_ALONE}", *spread)


def _test_file(part: str) -> str:
    """The path of a test file, from the checkout's root. `part` may also be a test: FILE::TEST."""
    path, separator, test = part.partition("::")
    file = Path(path).resolve()
    if not (file.is_file() and file.is_relative_to(TESTS)):
        raise UsageError(f"--part {part}: expected {', '.join(PARTS)}, or a file in tests/")
    return f"{file.relative_to(ROOT)}{separator}{test}"


def _pytest(*arguments: str) -> None:
    say("$ pytest " + " ".join(arguments))
    _call("-m", "pytest", *arguments)


def install_requirements() -> None:
    """Install the packages of the tests and checks in .venv, once for each version of their lock."""
    stamp = Path(sys.prefix) / "stamp-test"
    with files.locked(
        CACHE / "venv-test.lock", lambda: say("waiting for another ./inv that is installing the test tools")
    ):
        wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
        if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
            return
        say(f"installing {shown(REQUIREMENTS)}")
        _call("-m", "pip", "install", "-qq", "--require-hashes", "-r", str(REQUIREMENTS))
        stamp.write_text(wanted, encoding="ascii")


def _call(*arguments: str) -> None:
    # Some container images set this variable. The tests start ./inv often: let Python cache its bytecode.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    returncode = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, check=False).returncode
    if returncode != 0:
        raise Exit(code=returncode)
