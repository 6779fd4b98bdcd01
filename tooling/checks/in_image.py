"""`./inv test --inside PIN`: the run side's unit tests, with an image's Python and its copy of the run side.

Images do not contain pytest. It is downloaded on the host, once for each version of its lock, and mounted beside
the tests. Its wheels have no compiled code and work with every Python from 3.9 on.
"""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from invoke.exceptions import Exit

from cpu_train_stack.cli import files
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE, ROOT, shown
from tooling.engine import docker
from tooling.image.choice import Choice
from tooling.wheels import pip

REQUIREMENTS = ROOT / "tooling" / "requirements-inside.txt"
PYTEST = CACHE / "inside"
TESTS = "tests/unit/entrypoints"
# The mount points of the tests (below a folder of the image) and of pytest.
IMAGE_ROOT, IMAGE_PYTEST = "/opt/cpu-train-stack", "/run/pytest"
# The mounts come last on the path, so that packages of the image take precedence over pytest's dependencies.
PROGRAM = f"""\
import sys
sys.path[:] = [path for path in sys.path if path] + [{IMAGE_ROOT!r}, {IMAGE_PYTEST!r}]
import pytest

class Patience:
    def pytest_configure(self):
        from hypothesis import HealthCheck, settings
        # On a busy machine, this check blames the input of a test.
        settings.register_profile("inside", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("inside")

sys.exit(pytest.main(sys.argv[1:], plugins=[Patience()]))
"""
# SYS_NICE allows a process to read and set its NUMA memory policy.
ARGUMENTS = ("--network=none", "--workdir=/tmp", "--cap-add=SYS_NICE", "--env=PYTHONDONTWRITEBYTECODE=1")
LIMIT_SECONDS = 600.0


def run(choice: Choice) -> None:
    """Run the tests in the chosen image and print pytest's output. Raises Exit with pytest's exit code."""
    _, image = choice.ensure()
    started = time.monotonic()
    code, output = tests(image.id, [TESTS])  # a build may move the tag
    print(output, end="")
    say(f"{image.tag}: {TESTS} in {time.monotonic() - started:.0f} s")
    if code:
        raise Exit(code=code)


def tests(image: str, folders: Sequence[str]) -> tuple[int, str]:
    """The exit code and output of tests in a container without a network, where only /tmp is writable."""
    site = install()
    with tempfile.TemporaryDirectory(prefix="cts-inside-") as scratch:
        package = Path(scratch) / "tests"
        shutil.copytree(ROOT / TESTS, Path(scratch) / TESTS, ignore=shutil.ignore_patterns("__pycache__"))
        for helper in (ROOT / "tests").glob("*.py"):
            if helper.name != "conftest.py":  # its fixtures are for the host's tests
                shutil.copy(helper, package)
        (package / "unit" / "__init__.py").touch()
        _readable(Path(scratch))
        options = ["-p", "no:cacheprovider", "--rootdir", IMAGE_ROOT, "-q", "-ra"]
        options += ["-o", "markers=timeout: pytest-timeout is not in the image"]
        mounts = [f"--volume={package}:{IMAGE_ROOT}/tests:ro", f"--volume={site}:{IMAGE_PYTEST}:ro"]
        with tempfile.TemporaryFile() as output:
            done = docker.run(
                image,
                ["python", "-c", PROGRAM, *options, *(f"{IMAGE_ROOT}/{one}" for one in folders)],
                [*ARGUMENTS, *mounts],
                output,
                output,
                LIMIT_SECONDS,
            )
            output.seek(0)
            return done.returncode, output.read().decode(errors="replace")


def install() -> Path:
    """The folder with pytest and its dependencies. Re-created when the lock changes."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    folder = PYTEST / wanted[:12]
    CACHE.mkdir(exist_ok=True)
    with files.locked(CACHE / "inside.lock", lambda: say("waiting for another ./inv that is installing pytest")):
        if folder.is_dir():
            return folder
        shutil.rmtree(PYTEST, ignore_errors=True)
        PYTEST.mkdir()
        say(f"installing {shown(REQUIREMENTS)}")
        with tempfile.TemporaryDirectory(dir=PYTEST) as scratch:
            target = Path(scratch) / "target"
            arguments = ["install", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
            arguments += ["--python-version=3.9", "--implementation=py", "--abi=none", "--platform=any"]
            arguments += ["--target", str(target), "--requirement", str(REQUIREMENTS)]
            result = pip.run(arguments, scratch=Path(scratch))
            if result.returncode != 0:
                raise pip.failure(f"fetching {REQUIREMENTS.name}", result)
            _readable(target)
            target.rename(folder)
    return folder


def _readable(folder: Path) -> None:
    """Make a folder readable for the image's user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
