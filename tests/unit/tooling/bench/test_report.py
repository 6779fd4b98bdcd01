"""What a measurement writes and prints, and what is left of it if it cannot be written."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.bench import attention, launch, report
from tooling.bench.train import run as train
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.choice import Choice

DOCUMENT = {"date": "2026-01-02T03:04:05+00:00", "rows": [1]}
NAME = "kind-20260102T030405Z"


@pytest.mark.parametrize("given", [True, False], ids=["--output", "default"])
def test_a_folder_that_cannot_be_written_to_is_reported_by_its_name(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(UsageError, match=f"^bench: {tmp_path}: Permission denied, expected a folder that you can"):
        report.folder(str(tmp_path) if given else None)


@pytest.mark.parametrize(
    "run",
    [
        lambda choice: attention.run(attention.AttentionOptions(choice)),
        lambda choice: launch.run(launch.StartOptions(choice)),
        lambda choice: train.run(train.TrainOptions(choice)),
    ],
    ids=["attention", "launch", "train"],
)
def test_the_folder_is_checked_before_the_build(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(report, "FOLDER", tmp_path / "file" / "bench")
    monkeypatch.setattr(Choice, "ensure", lambda _self: pytest.fail("the image was built"))
    with pytest.raises(UsageError, match="file/bench: Not a directory"):
        run(Choice())


def test_a_document_names_its_commit_and_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["inv", "bench", "launch", "--with", "trl==1.16.0 x"])
    monkeypatch.setattr(report, "revision", lambda: ("4b825dc", "2026-01-02T03:04:05+00:00", ""))
    found = report.facts(Engine("unix:///docker", 2), Image("cpu-train-stack:2.13", "sha256:1", 0, False, 0.0))
    assert (found["commit"], found["image"], found["cpus"]) == ("4b825dc", "sha256:1", 2)
    assert found["command"] == ["./inv bench launch --with 'trl==1.16.0 x'"]


def test_the_files_have_the_printed_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.publish("kind", DOCUMENT, tmp_path, lambda _: "table", lambda _, path: path.touch(), as_json=True)
    out, _ = capsys.readouterr()
    assert json.loads(out) == DOCUMENT
    assert (tmp_path / f"{NAME}.json").read_text() == out
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".png"]


@pytest.mark.parametrize("as_json", [True, False], ids=["document", "table"])
def test_a_measurement_that_cannot_be_saved_is_printed(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{NAME}.json").mkdir()
    with pytest.raises(UsageError, match=rf"{NAME}\.json cannot be written: Is a directory: free some space"):
        report.publish("kind", DOCUMENT, tmp_path, lambda _: "the table", None, as_json)
    out, _ = capsys.readouterr()
    assert out == (json.dumps(DOCUMENT, indent=2) if as_json else "the table") + "\n"


def test_a_full_disk_keeps_the_rounds_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = report.save("kind", DOCUMENT, tmp_path)
    before = path.read_text()

    def full(file: Path, *_: object, **__: object) -> int:
        file.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(UsageError, match="cannot be written: No space left on device"):
            report.save("kind", {**DOCUMENT, "rows": [1, 2]}, tmp_path)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
