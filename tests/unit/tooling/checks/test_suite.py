"""Which checks and tests `./inv test --part` runs."""

import pytest

from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.checks import suite
from tooling.engine import api
from tooling.image import build

UNIT = "tests/unit/tooling/checks/test_suite.py"
IMAGE = "tests/image/test_run.py"
ALONE = "tests/cluster/test_stragglers.py"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run starts: checks, the build, and the paths that pytest gets."""
    monkeypatch.chdir(ROOT)
    found: list[str] = []

    def call(*arguments: str) -> None:
        paths = [word for word in arguments if word.startswith("tests/")]
        found.append(" ".join(paths) or arguments[1])

    monkeypatch.setattr(suite, "install_requirements", lambda: None)
    monkeypatch.setattr(suite, "_call", call)
    monkeypatch.setattr(api, "ensure", lambda: api.Engine("unix:///docker", 2))
    monkeypatch.setattr(build, "build", lambda *_: found.append("build"))
    return found


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (None, ["ruff", "ruff", "mypy", "build", "tests/unit", ALONE, "tests/cluster tests/image tests/emulated"]),
        ("unit", ["ruff", "ruff", "mypy", "tests/unit"]),
        ("image", ["build", "tests/image"]),
        ("cluster", ["build", ALONE, "tests/cluster"]),
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


@pytest.mark.parametrize("part", ["units", "tests/image/none.py", "README.md", "../tests"])
def test_an_unknown_part_is_one_line(started: list[str], part: str) -> None:
    with pytest.raises(UsageError, match=r"expected unit, image, cluster, emulated, or a file in tests/"):
        suite.run(part)
    assert started == []
