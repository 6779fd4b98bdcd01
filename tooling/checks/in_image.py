"""`./inv test --inside PIN`: the entrypoints' unit tests in a container of an image, with the image's own Python.

No image has pytest. It is downloaded on the host, once for each state of its lock, as wheels without compiled code
that work with every Python from 3.9 on, and mounted beside the tests. The tests run against the image's own
entrypoints/.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit

from tooling.basis import files
from tooling.basis.paths import CACHE, ROOT
from tooling.basis.say import Say
from tooling.engine import api, docker
from tooling.image.choice import Choice
from tooling.wheels import pip

REQUIREMENTS = ROOT / "tooling" / "requirements-inside.txt"
PYTEST = CACHE / "inside"
TESTS = "tests/unit/entrypoints"
# The folder of the image that has entrypoints/, and where pytest is mounted.
IMAGE_ROOT, IMAGE_PYTEST = "/opt/cpu-train-stack", "/run/pytest"
# pytest comes last on the path: what the image has of its dependencies is the image's.
PROGRAM = f"""\
import sys
sys.path[:] = [path for path in sys.path if path] + [{IMAGE_PYTEST!r}]
import pytest

class Patience:
    def pytest_configure(self):
        from hypothesis import HealthCheck, settings
        # Of a busy machine it says that the test's input is at fault.
        settings.register_profile("inside", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("inside")

sys.exit(pytest.main(sys.argv[1:], plugins=[Patience()]))
"""
# With SYS_NICE the engine lets a process ask for and set its NUMA memory policy.
ARGUMENTS = ("--network=none", "--workdir=/tmp", "--cap-add=SYS_NICE", "--env=PYTHONDONTWRITEBYTECODE=1")
LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class Outcome:
    """How pytest ended in a container: its exit code, its output, seconds by the clock."""

    exit_code: int
    output: str
    seconds: float


def run(choice: Choice, say: Say) -> None:
    """Runs the tests in the chosen image, shows pytest's output. Raises Exit with pytest's exit code."""
    image = choice.ensure_image(api.ensure(say), say)
    outcome = tests(image.tag, say)
    print(outcome.output, end="")
    say(f"{image.tag}: {TESTS} in {outcome.seconds:.0f} s")
    if outcome.exit_code:
        raise Exit(code=outcome.exit_code)


def tests(image: str, say: Say) -> Outcome:
    """Runs the tests in one container without a network, in which only /tmp can be written to."""
    site = install(say)
    with tempfile.TemporaryDirectory(prefix="cts-inside-") as scratch:
        package = Path(scratch) / "tests"
        shutil.copytree(ROOT / TESTS, Path(scratch) / TESTS, ignore=shutil.ignore_patterns("__pycache__"))
        for folder in (package, package / "unit"):
            (folder / "__init__.py").touch()
        _readable(Path(scratch))
        options = ["-p", "no:cacheprovider", "--rootdir", IMAGE_ROOT, "-q", "-ra"]
        mounts = [f"--volume={package}:{IMAGE_ROOT}/tests:ro", f"--volume={site}:{IMAGE_PYTEST}:ro"]
        started = time.monotonic()
        with tempfile.TemporaryFile() as output:
            done = docker.run(
                image,
                ["python", "-c", PROGRAM, *options, f"{IMAGE_ROOT}/{TESTS}"],
                [*ARGUMENTS, *mounts],
                output,
                output,
                LIMIT_SECONDS,
            )
            output.seek(0)
            text = output.read().decode(errors="replace")
    return Outcome(done.returncode, text, time.monotonic() - started)


def install(say: Say) -> Path:
    """A folder with pytest and what it needs, made if the lock is not the one that it was made from."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    folder = PYTEST / wanted[:12]
    CACHE.mkdir(exist_ok=True)
    with files.locked(CACHE / "inside.lock", lambda: say("another ./inv installs what runs the tests inside")):
        if folder.is_dir():
            return folder
        shutil.rmtree(PYTEST, ignore_errors=True)
        PYTEST.mkdir()
        say(f"installing {REQUIREMENTS.relative_to(ROOT)}")
        with tempfile.TemporaryDirectory(dir=PYTEST) as scratch:
            made = Path(scratch) / "made"
            arguments = ["install", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
            arguments += [
                "--python-version",
                "3.9",
                "--implementation",
                "py",
                "--abi",
                "none",
                "--platform",
                "any",
            ]
            arguments += ["--target", str(made), "--requirement", str(REQUIREMENTS)]
            result = pip.run(arguments, scratch=Path(scratch))
            if result.returncode != 0:
                raise pip.failure(f"fetching {REQUIREMENTS.name}", result)
            _readable(made)
            made.rename(folder)
    return folder


def _readable(folder: Path) -> None:
    """For the image's user, who is not the one that made the folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
