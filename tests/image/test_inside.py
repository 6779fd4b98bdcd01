"""The entrypoints' unit tests with the Python and the packages of the image, not the host's."""

import pytest

from tooling.checks import in_image


@pytest.mark.timeout(600)
def test_the_unit_tests_of_rooms_that_use_packages_pass_inside_the_image(image: str) -> None:
    """The other rooms need no package: ./inv test --inside PIN runs all."""
    code, output = in_image.tests(image, [f"{in_image.TESTS}/{room}" for room in ("machine", "train")])
    assert code == 0, output
    assert " passed" in output.splitlines()[-1], output
