"""The entrypoints' unit tests with the Python and the packages of the image, not the host's."""

from __future__ import annotations

import pytest

from tooling import inside
from tooling.basis.say import say


@pytest.mark.timeout(600)
def test_the_entrypoints_unit_tests_pass_inside_the_image(image: str) -> None:
    outcome = inside.tests(image, say)
    assert outcome.exit_code == 0, outcome.output
    assert " passed" in outcome.output.splitlines()[-1], outcome.output
