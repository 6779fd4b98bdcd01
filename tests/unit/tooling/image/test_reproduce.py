"""The first file in which the layers of two images differ. A stand-in for `docker` provides the images."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tooling.image import reproduce

# Answers `docker image inspect … NAME` and `docker image save NAME` from files.
DOCKER = """#!/bin/sh
for reference; do :; done
case $2 in
    inspect) cat "$IMAGES/$reference.json" ;;
    save) cat "$IMAGES/$reference.tar" ;;
esac
"""

FILES = {"etc/passwd": b"root", "opt/a": b"a", "opt/b": b"b"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(DOCKER)
    (tmp_path / "bin" / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("IMAGES", str(tmp_path))
    return tmp_path


def put(folder: Path, name: str, *contents: dict[str, bytes], time: int = 0, mode: int = 0o644) -> None:
    """An image with one layer for each dictionary; time and mode are those of the last layer's last file."""
    packed = [pack(files) for files in contents[:-1]] + [pack(contents[-1], time, mode)]
    digests = [hashlib.sha256(layer).hexdigest() for layer in packed]
    rootfs = {"Layers": [f"sha256:{digest}" for digest in digests]}
    (folder / f"{name}.json").write_text(json.dumps({"Id": "sha256:1", "Size": 1, "RootFS": rootfs, "Config": {}}))
    blobs = {f"blobs/sha256/{digest}": layer for digest, layer in zip(digests, packed, strict=True)}
    (folder / f"{name}.tar").write_bytes(pack({"oci-layout": b"{}", **blobs}))


def pack(files: dict[str, bytes], time: int = 0, mode: int = 0o644) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for number, (path, data) in enumerate(files.items(), start=1):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            if number == len(files):
                entry.mtime, entry.mode = time, mode
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def test_images_with_the_same_layers_do_not_differ(folder: Path) -> None:
    put(folder, "one", FILES, FILES)
    put(folder, "other", FILES, FILES)
    assert reproduce.difference("one", "other") is None


def test_the_first_file_that_differs_is_named_with_its_differences(folder: Path) -> None:
    put(folder, "one", {"base": b""}, FILES)
    put(folder, "time", {"base": b""}, FILES, time=7)
    put(folder, "mode", {"base": b""}, FILES, mode=0o600)
    put(folder, "content", {"base": b""}, {**FILES, "opt/a": b"x", "opt/b": b"y"})
    put(folder, "fewer", {"base": b""}, {"etc/passwd": b"root", "opt/b": b"b"})
    put(folder, "layers", {"base": b""})
    assert reproduce.difference("one", "time") == "layer 1: opt/b: time 0 and 7"
    assert reproduce.difference("one", "mode") == "layer 1: opt/b: mode '644' and '600'"
    found = reproduce.difference("one", "content") or ""
    assert found.startswith("layer 1: opt/a: content '")
    assert reproduce.difference("one", "fewer") == "layer 1: one has opt/a where the other has opt/b"
    assert reproduce.difference("one", "layers") == "one image has 1 layers, the other has more"
