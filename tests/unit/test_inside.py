"""Which unit tests run inside an image: those that need nothing of the build side."""

from __future__ import annotations

from pathlib import Path

import pytest
from invoke.collection import Collection

import tasks
from tooling.checks import in_image
from tooling.cli.parser import TaskProgram


def test_the_tests_of_entrypoints_run_inside_and_those_of_tooling_do_not() -> None:
    chosen = {path.name for path in in_image.run_side_tests()}
    assert {"test_environment.py", "test_affinity.py", "test_dispatch.py", "test_train_flags.py"} <= chosen
    assert chosen.isdisjoint({"test_pins.py", "test_images.py", "test_compose.py", "test_inside.py"})


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("import json\nfrom entrypoints import plan\n", True),
        ("from tests.unit import launcher_environments\n", True),
        ("from tests.unit.launcher_environments import RECORDINGS\n", True),
        ("import tooling.pins.parse\n", False),
        ("from benchmarks import pace\n", False),
        ("def test() -> None:\n    from tooling import pins\n", False),
        ("from tests.unit import tiny\n", False),
        ("from tests.unit.test_push import LOCK\n", False),
    ],
)
def test_what_a_test_imports_decides_also_by_way_of_others(tmp_path: Path, text: str, runs: bool) -> None:
    (tmp_path / "test_it.py").write_text(text)
    assert in_image.run_side_tests(tmp_path) == ([tmp_path / "test_it.py"] if runs else [])


def test_what_runs_them_is_locked_with_one_version_for_every_python() -> None:
    lines = in_image.REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if ";" in line] == []
    assert any(line.startswith("pytest==") for line in lines)


@pytest.mark.parametrize("options", [["--unit", "--inside", "2.13"], ["--torch-source", "default"]], ids=" ".join)
def test_a_bad_combination_of_options_is_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        TaskProgram(Collection.from_module(tasks)).run(["inv", "test", *options])
    assert end.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
