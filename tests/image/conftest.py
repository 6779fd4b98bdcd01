"""Fixtures of the tests that look at one container."""

from __future__ import annotations

import functools

import pytest

from tests import containers


@pytest.fixture
def run_in_image(image: str) -> containers.RunInImage:
    """Runs a command in a fresh container: run_in_image("python", "-c", "...", env={"A": "1"}, timeout=60)."""
    return functools.partial(containers.run, image)
