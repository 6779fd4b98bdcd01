"""The entrypoints' unit tests with the Python and the packages of the image, not the host's."""

import pytest

from tooling.checks import in_image


@pytest.mark.timeout(600)
def test_the_entrypoints_unit_tests_pass_inside_the_image(image: str) -> None:
    code, output = in_image.tests(image)
    assert code == 0, output
    assert " passed" in output.splitlines()[-1], output
