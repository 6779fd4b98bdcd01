"""--image: which file or name it is, and the image's ID in a file."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tooling.basis.errors import UsageError
from tooling.image import given
from tooling.image.choice import Choice

ID = "14547f534e4bbaa7fbc794c92ab425507c487373c53be64f919e10cf7557e02d"


def archive(path: Path, config: str) -> str:
    text = json.dumps([{"Config": config, "RepoTags": None, "Layers": []}]).encode()
    with tarfile.open(path, "w") as stream:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(text)
        stream.addfile(member, io.BytesIO(text))
    return str(path)


@pytest.mark.parametrize("config", [f"blobs/sha256/{ID}", f"{ID}.json"], ids=["Docker 25", "older"])
def test_the_id_of_the_image_in_a_file_is_its_name_in_the_engine(config: str, tmp_path: Path) -> None:
    image = archive(tmp_path / "stack.tar", config)
    assert given.name(image) == f"sha256:{ID}"
    assert Choice(image=image).reference == f"sha256:{ID}"


@pytest.mark.parametrize("image", ["registry.example:5000/team/stack:1", "cpu-train-stack:2.13", f"sha256:{ID}"])
def test_anything_else_is_a_name(image: str) -> None:
    assert given.name(image) == image


@pytest.mark.parametrize(
    ("name", "found"), [("missing.tar", "is missing"), ("", "is a folder"), ("text.tar", "is not an archive")]
)
def test_a_file_that_is_no_exported_image_is_one_line(name: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("no archive")
    with pytest.raises(UsageError, match=found) as refused:
        given.name(str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_an_image_cannot_be_combined_with_what_builds_one() -> None:
    with pytest.raises(UsageError, match="--image names the image: do not combine it with --pin"):
        Choice(pin="2.13", image="stack.tar")
    with pytest.raises(UsageError, match=r"--image-lock names the image: .*--image "):
        Choice(image_lock="image.lock.json", image="stack.tar")
