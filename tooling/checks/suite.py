"""`./inv test`: the checks and the unit tests, at the same time, then the tests that need Docker."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from invoke.exceptions import Exit

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE, ROOT
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

    A failure does not end the suite. Raises Exit with the exit code of the first call that failed.
    """
    file = None if part is None or part in PARTS else _test_file(part)
    install_requirements()
    calls = [_pytest(file)] if file else _calls(part)
    failed = {shown: code for call in calls for shown, code in call.run_all() if code}
    if failed:
        say(f"failed: {'; '.join(failed)}")
        raise Exit(code=next(iter(failed.values())))


@dataclass(frozen=True)
class _Call:
    """A command of the suite: the arguments of Python. `beside`: those that run at the same time."""

    arguments: tuple[str, ...]
    needs_image: bool = False
    beside: tuple["_Call", ...] = ()

    @property
    def shown(self) -> str:
        return " ".join(self.arguments[1:])

    def run_all(self) -> Iterator[tuple[str, int]]:
        """Run the command and those beside it, whose output follows. Yields the exit code of each."""
        with ExitStack() as ends:
            beside = [ends.enter_context(call.start(subprocess.PIPE)) for call in self.beside]
            code = self.run()
            for call, process in zip(self.beside, beside, strict=True):
                say(f"$ {call.shown}")
                print(process.communicate()[0], end="", flush=True)
                yield call.shown, process.returncode
        yield self.shown, code

    def run(self) -> int:
        """Returns the exit code."""
        try:
            if self.needs_image:
                Choice(engine=api.DOCKER).ensure()
        except UsageError as error:
            say(f"error: {error}")
            return error.exit_code
        say(f"$ {self.shown}")
        with self.start() as process:
            return process.wait()

    def start(self, output: int | None = None) -> subprocess.Popen[str]:
        """Start the command, with its output and errors in `output`."""
        # Some container images set this variable. The tests start ./inv often: let Python cache its bytecode.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        error = None if output is None else subprocess.STDOUT
        argv = [sys.executable, *self.arguments]
        return subprocess.Popen(argv, cwd=ROOT, env=env, stdout=output, stderr=error, text=True)


def _calls(part: str | None) -> Iterator[_Call]:
    """The commands of the suite, or of one of PARTS."""
    # One process more than cores, because some tests wait.
    processes = min((os.cpu_count() or 1) + 1, _MAX_PROCESSES)
    if part in (None, "unit"):
        unit = _pytest("tests/unit", f"--numprocesses={processes}", "--dist=loadfile")
        yield replace(unit, beside=tuple(_Call(("-m", *check)) for check in CHECKS))
    if part in (None, "cluster"):
        yield _pytest(_ALONE)
    # The tests of clusters first: their files take longest, and a long file at the end would run alone.
    slow = [f"tests/{name}" for name in ("cluster", "image", "emulated") if part in (None, name)]
    if slow:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        processes = max(1, min(processes, memory // _MEMORY_BYTES))
        spread = (f"--numprocesses={processes}", "--dist=loadfile", "--no-loadscope-reorder")
        yield _pytest(*slow, f"--ignore={_ALONE}", *spread)


def _pytest(*arguments: str) -> _Call:
    is_unit = arguments[0].startswith("tests/unit")
    return _Call(("-m", "pytest", *arguments), needs_image=not is_unit)


def _test_file(part: str) -> str:
    """The path of a test file, from the checkout's root. `part` may also be a test: FILE::TEST."""
    path, separator, test = part.partition("::")
    file = Path(path).resolve()
    if not (file.is_file() and file.is_relative_to(TESTS)):
        raise UsageError(f"--part {part}: expected {', '.join(PARTS)}, or a file in tests/")
    return f"{file.relative_to(ROOT)}{separator}{test}"


def install_requirements() -> None:
    """Install the packages of the tests and checks in .venv, once for each version of their lock."""
    stamp = Path(sys.prefix) / "stamp-test"
    with files.locked(
        CACHE / "venv-test.lock", lambda: say("waiting for another ./inv that is installing the test tools")
    ):
        wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
        if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted:
            return
        call = _Call(("-m", "pip", "install", "-qq", "--require-hashes", "-r", str(REQUIREMENTS)))
        if code := call.run():
            raise Exit(code=code)
        stamp.write_text(wanted, encoding="ascii")
