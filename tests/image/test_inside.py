"""The entrypoints' unit tests with the Python and the packages of the image, not the host's."""

from __future__ import annotations

import pytest

from tooling.checks import in_image


@pytest.mark.timeout(600)
def test_the_entrypoints_unit_tests_pass_inside_the_image(image: str) -> None:
    outcome = in_image.tests(image)
    assert outcome.exit_code == 0, outcome.output
    assert " passed" in outcome.output.splitlines()[-1], outcome.output
