"""The labels of an image."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT
from tooling.image import recipe
from tooling.image.base import Base
from tooling.pins import parse

PIN = parse.load().pin()
GROUND = Base("some-base:tag", "sha256:" + "1" * 64, "mmdebstrap")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of what the labels name, which a test may change."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    git(tmp_path, "init")
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_the_labels_name_the_pin_the_base_and_every_version() -> None:
    made = recipe.labels(PIN, GROUND, {"b": "2", "a": "1"}, "sum")
    assert json.loads(made["cpu-train-stack.versions"]) == {"a": "1", "b": "2"}
    assert made["cpu-train-stack.pin"] == PIN.name
    assert made["cpu-train-stack.inputs-sha256"] == "sum"
    assert made["cpu-train-stack.base-source"] == "mmdebstrap"
    assert made["org.opencontainers.image.base.digest"] == GROUND.digest
    assert made["org.opencontainers.image.version"].endswith("-2.13")
    assert all(made.values())


def test_the_labels_name_the_commit_and_what_is_not_in_it(checkout: Path) -> None:
    git(checkout, "remote", "add", "origin", "git@h.example:g/x.git")
    git(checkout, "add", ".")
    git(checkout, "commit", "--message", "First")
    made = recipe.labels(PIN, GROUND, {}, "sum")
    assert made[recipe.SOURCE_LABEL] == "git@h.example:g/x.git"
    assert len(made[recipe.REVISION_LABEL]) == 40
    (checkout / "pyproject.toml").write_text('[project]\nversion = "9.9"\n')
    assert recipe.labels(PIN, GROUND, {}, "sum")[recipe.REVISION_LABEL] == f"{made[recipe.REVISION_LABEL]}-dirty"


@pytest.mark.parametrize(
    "url",
    [
        "https://{}@h.example/g/x.git",
        "https://user:{}@h.example/g/x.git?a@b",
        "https://user:{}/{}@h.example/g/x.git",
        "https://h.example/g/x.git?private_token=a@{}",
        "https://h.example/g/x.git#a@{}",
        "https://h.example/g/x.git;private_token={}",
        "https://h.example/g/x.git",
    ],
)
def test_no_part_of_an_origin_that_may_be_secret_is_in_the_label(checkout: Path, url: str) -> None:
    git(checkout, "remote", "add", "origin", url.replace("{}", "s3cret"))
    assert recipe.labels(PIN, GROUND, {}, "sum")[recipe.SOURCE_LABEL] == "https://h.example/g/x.git"


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no-git"])
def test_a_folder_that_is_not_a_checkout_has_an_unknown_revision(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    (checkout / ".git").rename(checkout / "no-git")
    if not has_git:
        monkeypatch.setenv("PATH", str(checkout))
    made = recipe.labels(PIN, GROUND, {}, "sum")
    assert made[recipe.REVISION_LABEL] == "unknown"
    assert made[recipe.SOURCE_LABEL] == "unknown"
