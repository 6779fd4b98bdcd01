"""`./inv build --all`: a row that cannot be built is one line, and the other rows are built."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from tests import containers
from tooling.engine import docker
from tooling.image import build as images
from tooling.image import recipe
from tooling.image.base import Base
from tooling.image.build import Image
from tooling.pins import parse
from tooling.pins import pin as pin_module
from tooling.pins.parse import Matrix
from tooling.pins.pin import Pin
from tooling.wheels import fetch, locks

ROW = parse.load().pin()


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Image]]:
    """Builds, as a checkout of that identity, an empty image of a pin of this test's own from those inputs."""
    row = replace(ROW, name=containers.unique_name().rpartition("test-")[2])
    wanted = ""
    made: set[str] = set()

    def buildx(_pin: Pin, _base: Base, labels: Mapping[str, str], tag: str) -> None:
        argv = [
            "docker",
            "import",
            f"--change=LABEL {recipe.INPUTS_LABEL}={labels[recipe.INPUTS_LABEL]}",
            "-",
            tag,
        ]
        subprocess.run(argv, input=bytes(10240), capture_output=True, check=True, timeout=60)

    def build(checkout: str, inputs: str) -> Image:
        nonlocal wanted
        wanted = inputs
        monkeypatch.setattr(pin_module, "IDENTITY", checkout)
        made.update((row.image, row.shared_tag))
        return images.build(row)

    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setattr(images, "_buildx", buildx)
    monkeypatch.setattr(recipe, "inputs_sha256", lambda *_: wanted)
    monkeypatch.setattr(fetch, "fetch", lambda *_: tmp_path)
    monkeypatch.setattr(locks, "path_of", lambda _pin: locks.LOCKS / "2.13.txt")
    monkeypatch.setattr(locks, "build_path_of", lambda _pin: locks.LOCKS / "2.13-build.txt")
    yield build
    for tag in made:
        subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=False, timeout=60)


def test_a_checkouts_build_neither_replaces_nor_removes_another_checkouts_image(
    image: str, build: Callable[[str, str], Image]
) -> None:
    mine = build("11111111", "a")
    theirs = build("22222222", "b")
    assert mine.tag != theirs.tag
    assert _id(mine.tag) == mine.id

    again = build("11111111", "c")
    assert again.built
    assert _id(mine.tag) == again.id
    assert docker.find_image(mine.id) is None, "the image that this one supersedes is left"
    assert _id(theirs.tag) == theirs.id


def test_the_shared_tag_follows_the_checkout_that_took_it(
    image: str, build: Callable[[str, str], Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build("11111111", "a")
    shared = first.tag.removesuffix("-11111111")
    assert _id(shared) == first.id, "nobody had it"
    build("22222222", "b")
    assert _id(shared) == first.id
    second = build("11111111", "c")
    assert _id(shared) == second.id

    theirs = build("22222222", "b")
    assert not theirs.built
    images.take_shared_tag(replace(ROW, name=shared.partition(":")[2]))
    assert _id(shared) == theirs.id
    build("11111111", "d")
    assert _id(shared) == theirs.id


def _id(reference: str) -> str:
    return docker.read_image(reference).id


@pytest.mark.timeout(120)
def test_rows_that_cannot_be_built_are_a_line_each_and_the_others_are_built(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = containers.unique_name()
    packages = {"torch": ROW.packages["torch"]}
    dead = replace(ROW, name=name, own=True, packages=packages, build_packages={}, sources={})
    unlocked = replace(ROW, name="unlocked")
    matrix = Matrix(ROW.name, {pin.name: pin for pin in (unlocked, dead, ROW)})
    monkeypatch.setattr(parse, "load", lambda: matrix)
    monkeypatch.setattr(fetch, "WHEELS", tmp_path)
    monkeypatch.setattr(images, "take_shared_tag", lambda _pin: None)  # it is the user's
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    locks.OWN_LOCKS.mkdir(parents=True, exist_ok=True)
    locks.path_of(dead).write_text(f"torch=={packages['torch']} --hash=sha256:{'0' * 64}\n")
    locks.build_path_of(dead).write_text("")
    started = time.monotonic()
    try:
        with pytest.raises(Exit) as caught:
            images.run_all("row")
    finally:
        locks.path_of(dead).unlink()
        locks.build_path_of(dead).unlink()
    assert time.monotonic() - started < 60
    assert caught.value.code == 1
    assert str(caught.value) == f"2 of 3 rows were not built: unlocked, {name}"
    said = capsys.readouterr().err.splitlines()
    lines = {line.partition(":")[0]: line for line in said}
    assert "has no unlocked.txt: create it with ./inv dev lock --pin unlocked" in lines["unlocked"]
    assert "the package index refuses connections: check network and proxy" in lines[name]
    assert f"{image}: up to date" in said[-1]
