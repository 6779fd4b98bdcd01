"""image.lock.json, and the options that cannot be combined with it."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.image.examples import LOCK
from tooling.image import lock
from tooling.image.choice import Choice


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    lock.write(LOCK, tmp_path / "image.lock.json")
    assert lock.read(tmp_path / "image.lock.json") == LOCK


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"image": "-h@sha256:" + "0" * 64}, "image is '-h@sha256", id="option"),
        pytest.param({"image": "stack:2.13"}, "image is 'stack:2.13', expected HOST/NAME@sha256", id="tag"),
        pytest.param({"sbom_sha256": "abc"}, "sbom_sha256 is 'abc'", id="sum"),
        pytest.param({"labels": []}, "a value has the wrong type", id="labels"),
        pytest.param({"more": 1}, "expected a JSON object with image, tag, pin, revision, ", id="foreign"),
    ],
)
def test_a_lock_that_push_did_not_write_is_one_line(
    tmp_path: Path, change: dict[str, object], expected: str
) -> None:
    path = tmp_path / "image.lock.json"
    path.write_text(json.dumps({**asdict(LOCK), **change}))
    with pytest.raises(UsageError, match=r"is not a file written by \./inv push") as caught:
        lock.read(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it is not JSON"),
        (b"[]", "expected a JSON object with image, tag, "),
        (b"{", "it is not JSON"),
        (b"\x00", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 200_000, "it is not JSON"),
    ],
    ids=["empty", "list", "cut off", "zero", "no UTF-8", "too deep"],
)
def test_a_lock_that_is_no_json_object_is_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "image.lock.json").write_bytes(content)
    with pytest.raises(UsageError, match=rf"is not a file written by \./inv push: {expected}"):
        lock.read(tmp_path / "image.lock.json")


def test_a_folder_in_place_of_a_lock_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a file written by \./inv push: Is a directory$"):
        lock.read(tmp_path)


def test_a_lock_and_a_pin_cannot_be_combined() -> None:
    with pytest.raises(UsageError, match="do not combine it with --pin"):
        Choice(pin="2.13", image_lock="image.lock.json")


def test_an_empty_name_of_an_image_does_not_mean_the_default_pin() -> None:
    with pytest.raises(UsageError, match="--image-lock is empty, expected a file of"):
        Choice(image_lock="")
    with pytest.raises(UsageError, match="--image is empty"):
        Choice(image="")


@pytest.mark.parametrize("key", ["cosign.pub", ""])
def test_a_key_needs_a_lock(key: str) -> None:
    with pytest.raises(UsageError, match="found --key without --image-lock"):
        Choice(pin="2.13", key=key)
