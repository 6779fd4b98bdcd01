"""`./inv test --inside`: the lock of pytest, and bad options."""

from collections.abc import Sequence

import pytest

import tasks
from tests.unit.tooling.cli.program import run
from tooling.checks import in_image
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.choice import Choice


def test_the_lock_has_one_version_of_pytest_for_every_python() -> None:
    lines = in_image.REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if ";" in line] == []
    assert any(line.startswith("pytest==") for line in lines)


@pytest.mark.parametrize(
    "options", [["--part", "unit", "--inside", "2.13"], ["--torch-source", "default"]], ids=" ".join
)
def test_a_bad_combination_of_options_is_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(tasks.SECTIONS, ["test", *options], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_the_tests_run_in_the_chosen_image_although_a_build_moves_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    image, used = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0), []

    def tests(image: str, _folders: Sequence[str]) -> tuple[int, str]:
        used.append(image)
        return 0, ""

    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("unix:///sock", 1), image))
    monkeypatch.setattr(in_image, "tests", tests)
    in_image.run(Choice())
    assert used == ["sha256:1"]
