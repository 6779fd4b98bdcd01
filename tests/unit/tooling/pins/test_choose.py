"""Which pin a command line means: a row, the default index's torch, a user's own versions, or why it cannot be."""

import pytest

import tasks
from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.cli.program import run
from tooling.pins import choose, parse
from tooling.pins.pin import Ccl, TorchSource

DEFAULT = parse.load().pin()


def test_without_options_the_row_is_chosen() -> None:
    assert choose.choose() == DEFAULT
    assert choose.choose("2.8") == parse.load().pin("2.8")


def test_a_pin_with_the_default_indexs_torch_has_another_name_lock_and_sha256() -> None:
    pin = choose.choose("2.15", torch_source="default")
    assert (pin.name, pin.packages["torch"]) == ("2.15-default-torch", "2.15.0")
    assert pin.torch_source is TorchSource.DEFAULT
    assert "torch" not in pin.sources
    assert pin.facts_sha256 != parse.load().pin("2.15").facts_sha256


def test_a_users_own_combination_has_another_tag_and_keeps_the_rest_of_the_row() -> None:
    pin = choose.choose(assignments=["torch=2.14.1", "Accelerate=1.14.0"])
    assert pin.own
    assert pin.image.startswith("cpu-train-stack:2.13-own-")
    assert (pin.packages["torch"], pin.packages["accelerate"]) == ("2.14.1+cpu", "1.14.0")
    assert set(pin.packages) == set(DEFAULT.packages)
    assert pin == choose.choose(assignments=["accelerate=1.14.0", "torch=2.14.1+cpu"])
    other = choose.choose(assignments=["torch=2.14.1", "accelerate=1.14.1"])
    assert other.image != pin.image


@pytest.mark.parametrize(
    ("name", "oneccl", "wheel", "index"),
    [
        ("2.7", "2021.14", "2.7.0+cpu", "https://pytorch-extension.intel.com/"),
        ("2.4", "2021.12", "2.4.0+cpu", "https://pytorch-extension.intel.com/"),
        ("2.1", "2021.9", "2.1.0+cpu", "https://pytorch-extension.intel.com/"),
        ("2.0", "2021.7.1", "2.0.0+cpu", "https://developer.intel.com/"),
        ("1.13", "2021.7.1", "1.13.0", "https://developer.intel.com/"),
        ("1.12", "2021.5.2", "1.12.100", "https://developer.intel.com/"),
        ("1.10", "2021.2.1", "1.10.0", "https://software.intel.com/"),
    ],
)
def test_intels_wheel_can_replace_this_projects_backend_in_a_row_that_names_one(
    name: str, oneccl: str, wheel: str, index: str
) -> None:
    row = choose.choose(name)
    intel = choose.choose(name, ["ccl=intel"])
    assert (row.ccl, row.oneccl, row.build_requirements) == (Ccl.BINDINGS, "2022.2.0", ("oneccl-devel==2022.2.0",))
    assert (intel.ccl, intel.oneccl, intel.build_requirements) == (Ccl.INTEL, oneccl, ())
    assert intel.packages == {**row.packages, "oneccl-bind-pt": wheel}
    assert intel.sources["oneccl-bind-pt"].url.startswith(index)
    assert intel.own
    assert intel.name.startswith(f"{name}-own-")
    assert choose.choose(name, ["ccl=bindings"]) == row
    assert choose.choose(name, torch_source="default").ccl is Ccl.BINDINGS


def test_the_version_of_a_compiled_package_can_be_chosen() -> None:
    assert choose.choose(assignments=["oneccl-devel=2022.1.0"]).build_packages == {"oneccl-devel": "2022.1.0"}


@pytest.mark.parametrize(
    ("name", "assignments", "source", "expected"),
    [
        pytest.param(None, ["torch=2.4.0"], "row", "transformers 5.23.0 needs torch 2.6.0", id="rule"),
        pytest.param(None, ["tork=2.4.0"], "row", "'tork' is not a package of a pin", id="package"),
        pytest.param(None, ["torch=1.9.0"], "row", "the nearest pin is 1.10", id="refused-torch"),
        pytest.param(None, ["torch=1.12.1"], "row", "use --pin 1.12", id="torch-of-a-row"),
        pytest.param(None, ["torch"], "row", "--set torch: found '', expected an exact version", id="no-version"),
        pytest.param(None, ["torch=>=2"], "row", "'>=2', expected an exact version", id="range"),
        pytest.param(None, ["numpy=2.4.6", "NumPy=2.4.5"], "row", "--set numpy is given twice", id="twice"),
        pytest.param(None, [], "mine", "--torch-source is 'mine', expected row or default", id="source"),
        pytest.param("2.7", ["ccl=gloo"], "row", "expected ccl=bindings or ccl=intel", id="backend"),
        pytest.param("2.7", ["ccl=intel", "ccl=bindings"], "row", "give one of the two", id="two-backends"),
        pytest.param(None, ["ccl=intel"], "row", "no bindings for the torch of pin 2.13", id="no-intel"),
        pytest.param("2.7", ["ccl=intel"], "default", "needs the CPU build of torch", id="intel-and-default"),
        pytest.param(
            "2.7", ["ccl=intel", "torch=2.7.1"], "row", "was never published for torch 2.7.1", id="intel-other"
        ),
        pytest.param("1.9", [], "row", "the ccl backend needs torch 1.10 or later", id="refused"),
    ],
)
def test_an_impossible_choice_is_one_line(
    name: str | None, assignments: list[str], source: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choose.choose(name, assignments, source)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_error_for_a_refused_pin_names_the_nearest_pin(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(tasks.SECTIONS, ["build", "--pin", "1.9"], capsys)
    assert (code, out) == (contract.USAGE_EXIT_CODE, "")
    assert err.strip().endswith("; the nearest pin is 1.10")


def test_ipex_is_the_name_that_the_matrix_prints() -> None:
    parsed = choose.parse_assignments(["ipex=1.13.0"], DEFAULT)
    assert parsed == {"intel-extension-for-pytorch": "1.13.0"}
