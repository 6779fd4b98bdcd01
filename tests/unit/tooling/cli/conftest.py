"""The process that the tests of ./inv fork."""

import pytest

from tests.forks import Forks, forks
from tooling.basis.paths import ROOT


@pytest.fixture
def python() -> Forks:
    """A Python that has imported ./inv and plain invoke."""
    return forks(("tasks", "tooling.cli.parser", "invoke.main"), ROOT)
