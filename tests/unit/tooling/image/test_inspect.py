"""Whether a running image matches its row."""

from dataclasses import replace

import pytest

from tests.unit.tooling.image.examples import FOUND, PIN
from tooling.image import inspect
from tooling.image.inspect import Inventory

CHECKS = [
    {"name": "versions", "status": "ok", "detail": "all"},
    {"name": "CPUs", "status": "warning", "detail": ""},
]


def test_an_image_that_matches_its_row_may_be_pushed() -> None:
    assert inspect.mismatch(PIN, FOUND, CHECKS) is None


@pytest.mark.parametrize(
    ("found", "checks", "expected"),
    [
        pytest.param(replace(FOUND, pin="2.8"), CHECKS, "pin is '2.8', the row has '2.13'", id="pin"),
        pytest.param(replace(FOUND, python="3.9"), CHECKS, "python is '3.9'", id="python"),
        pytest.param(replace(FOUND, python_packages=()), CHECKS, "torch is missing", id="package"),
        pytest.param(
            replace(FOUND, python_packages=FOUND.python_packages[:-2]), CHECKS, "oneccl-bind-pt is", id="ccl"
        ),
        pytest.param(FOUND, [], "its doctor reports wrong versions: not checked", id="no-doctor"),
        pytest.param(
            FOUND, [{**CHECKS[0], "status": "warning"}], "its doctor reports wrong versions", id="versions"
        ),
        pytest.param(
            FOUND,
            [*CHECKS, {"name": "allreduce ccl", "status": "error", "detail": "two ranks fail"}],
            "its doctor reports an error: allreduce ccl: two ranks fail",
            id="sick",
        ),
    ],
)
def test_an_image_that_differs_from_its_row_is_not_pushed(
    found: Inventory, checks: list[dict[str, str]], expected: str
) -> None:
    assert (inspect.mismatch(PIN, found, checks) or "").startswith(expected)
