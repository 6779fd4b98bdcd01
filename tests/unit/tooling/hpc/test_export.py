"""./inv export: what is checked before an image is built, and the files that describe the image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tooling.basis.errors import UsageError
from tooling.engine.docker import LocalImage
from tooling.hpc import export

CONFIGURATION = {"Env": ["PATH=/opt/venv/bin", "A=1 2"]}
IMAGE = LocalImage("sha256:" + "1" * 64, 1, {"cpu-train-stack.pin": "2.13"}, (), CONFIGURATION)


@pytest.mark.parametrize(
    ("form", "output", "expected"),
    [
        ("sif", "new", "--format is 'sif', expected one of oci, docker, tar, charliecloud, apptainer, enroot"),
        ("oci", "", "--output is missing"),
        ("oci", "file", "which exists, expected a new path"),
        ("oci", "none/new", "expected a new path in a folder that exists"),
    ],
)
def test_a_bad_option_is_reported(form: str, output: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=expected):
        export.check(form, str(tmp_path / output) if output else "")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("apptainer", "apptainer is not on PATH: install it, or use --format docker"),
        ("enroot", "enroot is not on PATH: install it, or push the image"),
    ],
)
def test_a_program_is_needed_for_its_format_only(
    program: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert export.check("docker", str(tmp_path / "new")) == tmp_path / "new"
    with pytest.raises(UsageError, match=expected):
        export.check(program, str(tmp_path / "new"))


def test_the_files_describe_the_image() -> None:
    assert json.loads(export.facts(IMAGE)) == {"image": IMAGE.id, "labels": {"cpu-train-stack.pin": "2.13"}}
    assert export.environment(IMAGE) == "PATH=/opt/venv/bin\nA=1 2\n"
