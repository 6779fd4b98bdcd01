"""Which versions fit together: a row that does not work breaks a rule, and the rows of the matrix break none."""

from dataclasses import replace

import pytest

from tests.unit.tooling.tiny import make_pin
from tooling.pins import parse, rules
from tooling.pins.pin import Ccl, Pin

FITS_2_4 = {
    "torch": "2.4.0+cpu",
    "intel-extension-for-pytorch": "2.4.0",
    "oneccl-bind-pt": "2.4.0+cpu",
    "transformers": "4.46.3",
    "numpy": "1.26.4",
    "setuptools": "75.8.2",
}


def broken(packages: dict[str, str], python: str = "3.11", ccl: Ccl = Ccl.BINDINGS) -> str | None:
    return rules.broken(replace(make_pin(packages), python=python, ccl=ccl))


@pytest.mark.parametrize("pin", parse.load().pins.values(), ids=lambda pin: pin.name)
def test_every_row_of_the_matrix_keeps_every_rule(pin: Pin) -> None:
    assert rules.broken(pin) is None
    if pin.ccl is Ccl.BINDINGS:
        assert rules.broken(pin.with_default_torch()) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"transformers": "4.46.0"}, "was withdrawn by its authors: use 4.46.3", id="yanked"),
        pytest.param(
            {"oneccl-bind-pt": "2.3.0+cpu"}, "only fits torch 2.3.0: use 2.4.0 with torch 2.4.0+cpu", id="bindings"
        ),
        pytest.param(
            {"oneccl-bind-pt": "9.9"}, "9.9 was never published: use 2.4.0 with torch 2.4.0+cpu", id="no-bindings"
        ),
        pytest.param({"torch": "2.4.1+cpu"}, "never published for torch 2.4.1+cpu", id="patch-release-of-torch"),
        pytest.param({"torch": "2.4.0"}, "linked against the +cpu build of torch, found torch 2.4.0", id="cuda"),
        pytest.param(
            {"intel-extension-for-pytorch": "2.5.0"},
            "only for torch 2.5, found 2.4.0+cpu: use a pin with torch 2.5 (./inv matrix), "
            "or intel-extension-for-pytorch 2.4.*",
            id="ipex",
        ),
        pytest.param(
            {"setuptools": "82.0.0"},
            "imports pkg_resources: use setuptools below 82, found setuptools 82",
            id="pkg_resources",
        ),
        pytest.param({"numpy": "2.0.0", "torch": "2.2.2+cpu"}, "torch 2.2.2+cpu needs numpy below 2", id="numpy"),
        pytest.param({"transformers": "5.3.0", "torch": "2.3.1+cpu"}, "needs torch 2.4.0 or later", id="torch"),
        pytest.param({"torch": "1.12.1+cpu"}, "has no wheel for Python 3.11: use torch 1.13.0 and", id="python"),
    ],
)
def test_a_combination_that_does_not_fit_is_refused_with_the_rule_that_it_breaks(
    change: dict[str, str], expected: str
) -> None:
    assert broken(FITS_2_4, ccl=Ccl.INTEL) is None
    assert expected in (broken({**FITS_2_4, **change}, ccl=Ccl.INTEL) or "")


def test_bindings_1_12_0_are_only_for_torch_1_12_0() -> None:
    row = {"torch": "1.12.1+cpu", "oneccl-bind-pt": "1.12.0"}
    assert broken(row, "3.9", Ccl.INTEL) == (
        "oneccl-bind-pt 1.12.0 only fits torch 1.12.0: use 1.12.100 with torch 1.12.1+cpu"
    )
    assert broken({**row, "torch": "1.12.0+cpu"}, "3.9", Ccl.INTEL) is None


@pytest.mark.parametrize(
    ("row", "python", "expected"),
    [
        pytest.param({"torch": "2.9.0"}, "3.9", "use torch 1.8.1 to 2.8.0", id="too-new-for-3.9"),
        pytest.param({"torch": "2.4.1"}, "3.13", "use torch 2.5.0 and later", id="too-old-for-3.13"),
        pytest.param({"torch": "2.8.0"}, "3.10", "no Debian release has Python 3.10", id="no-debian"),
        pytest.param(
            {"torch": "2.8.0", "transformers": "5.23.0"}, "3.9", "5.23.0 needs Python 3.11", id="transformers"
        ),
        pytest.param({"torch": "1.9.0+cpu"}, "3.9", "backend needs torch 1.10.0 or later", id="own-backend"),
        pytest.param(
            {"torch": "2.8.0", "oneccl-bind-pt": "2.7.0"},
            "3.11",
            "which --set ccl=intel chooses",
            id="two-backends",
        ),
    ],
)
def test_the_rules_apply_to_this_projects_bindings_too(row: dict[str, str], python: str, expected: str) -> None:
    assert expected in (broken(row, python) or "")


def test_intels_backend_must_be_among_the_packages() -> None:
    without = {name: version for name, version in FITS_2_4.items() if name != "oneccl-bind-pt"}
    assert "needs oneccl-bind-pt" in (broken(without, ccl=Ccl.INTEL) or "")


def test_no_ipex_is_advised_for_a_torch_that_has_none() -> None:
    problem = broken(
        {**FITS_2_4, "torch": "2.13.0+cpu", "intel-extension-for-pytorch": "1.13.0"}, ccl=Ccl.BINDINGS
    )
    assert (problem or "").endswith("found 2.13.0+cpu: use a pin with torch 1.13 (./inv matrix)")


def test_an_ipex_that_imports_pkg_resources_needs_an_older_setuptools() -> None:
    without = {name: version for name, version in FITS_2_4.items() if name != "setuptools"}
    assert "below 82, found no setuptools" in (broken(without, ccl=Ccl.INTEL) or "")
    newer = {"torch": "2.8.0", "intel-extension-for-pytorch": "2.8.0", "numpy": "2.2.6"}
    assert broken(newer) is None


def test_the_abi_changed_with_torch_2_6() -> None:
    assert [rules.abi(torch) for torch in ("1.13.1+cpu", "2.5.1+cpu", "2.6.0+cpu")] == [
        "pre-cxx11",
        "pre-cxx11",
        "cxx11",
    ]
