"""Which checks and tests `./inv test --part` runs."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.checks import suite
from tooling.engine import api
from tooling.image import build

UNIT = "tests/unit/tooling/checks/test_suite.py"
IMAGE = "tests/image/test_run.py"
ALONE = "tests/cluster/test_stragglers.py"
CHECKS = ("ruff", "ruff", "mypy")
FAILS: set[str] = set()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run starts: checks, the build, and the paths that pytest gets."""
    monkeypatch.chdir(ROOT)
    found: list[str] = []

    def start(command: suite._Call, output: int | None = None) -> subprocess.Popen[str]:
        paths = [word for word in command.arguments if word.startswith("tests/")]
        found.append(" ".join(paths) or command.arguments[1])
        return subprocess.Popen(["false" if found[-1] in FAILS else "true"], stdout=output, text=True)

    monkeypatch.setattr(suite, "install_requirements", lambda: None)
    monkeypatch.setattr(suite._Call, "start", start)
    FAILS.clear()
    monkeypatch.setattr(api, "ensure", lambda: api.Engine("unix:///docker", 2))
    monkeypatch.setattr(build, "build", lambda *_: found.append("build"))
    return found


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (None, [*CHECKS, "tests/unit", "build", ALONE, "build", "tests/cluster tests/image tests/emulated"]),
        ("unit", [*CHECKS, "tests/unit"]),
        ("image", ["build", "tests/image"]),
        ("cluster", ["build", ALONE, "build", "tests/cluster"]),
        ("emulated", ["build", "tests/emulated"]),
        (UNIT, [UNIT]),
        (IMAGE, ["build", IMAGE]),
        (f"{IMAGE}::test_name", ["build", f"{IMAGE}::test_name"]),
    ],
)
def test_a_part_runs_its_checks_and_tests(started: list[str], part: str | None, expected: list[str]) -> None:
    suite.run(part)
    assert started == expected
    assert all((ROOT / path.split("::")[0]).exists() for line in expected for path in line.split() if "/" in path)


def test_a_failing_part_does_not_hide_the_others(started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    FAILS.update(("mypy", ALONE))
    with pytest.raises(Exit) as failure:
        suite.run(None)
    assert started[-1] == "tests/cluster tests/image tests/emulated"
    assert failure.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"failed: mypy; pytest {ALONE}"


def test_an_image_that_cannot_be_built_does_not_hide_the_failures_before(
    started: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise UsageError("no engine")

    monkeypatch.setattr(build, "build", fails)
    FAILS.add("mypy")
    with pytest.raises(Exit) as failure:
        suite.run(None)
    assert failure.value.code == 1
    assert started == [*CHECKS, "tests/unit"]
    error = capsys.readouterr().err
    assert error.count("error: no engine") == 2
    assert "failed: mypy; pytest" in error


@pytest.mark.parametrize("part", ["units", "tests/image/none.py", "README.md", "../tests"])
def test_an_unknown_part_is_one_line(started: list[str], part: str) -> None:
    with pytest.raises(UsageError, match=r"expected unit, image, cluster, emulated, or a file in tests/"):
        suite.run(part)
    assert started == []


def test_a_check_runs_beside_the_tests_and_its_output_follows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "text")
    check = suite._Call(("-c", "import sys; sys.exit(open(sys.argv[1]).read())", str(tmp_path / "text")))
    tests = suite._Call(
        ("-c", "import sys; open(sys.argv[1], 'w').write('b'); print('a')", str(tmp_path / "text"))
    )
    assert [code for _, code in replace(tests, beside=(check,)).run_all()] == [1, 0]
    assert capfd.readouterr().out == "a\nb\n"
