"""Fixtures that tests/image and tests/cluster share. tests/unit uses none of them: it runs without Docker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import containers
from tooling.basis.say import say
from tooling.cluster import pretrained
from tooling.engine import api
from tooling.image import build
from tooling.pins import parse


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """The tag of the default pin's image, built if it is not up to date."""
    api.ensure(say)
    yield build.build(parse.load().pin(), say).tag
    left = containers.left_behind()
    assert not left, f"the tests left containers or networks behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The host's folder of all-MiniLM-L6-v2: config.json, model.safetensors and the tokenizer's files."""
    return pretrained.minilm(say)


@pytest.fixture
def output_folder(tmp_path: Path) -> Path:
    """A folder of the host that the image's user, uid 1000, can write into when it is mounted."""
    folder = tmp_path / "output"
    folder.mkdir()
    folder.chmod(0o777)
    return folder
