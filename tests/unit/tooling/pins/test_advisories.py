"""Advisories: which versions are affected, and where an advisory is shown."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import cpu_train_stack.doctor.image
from cpu_train_stack.cli.checks import CheckStatus
from cpu_train_stack.cli.say import say
from tooling.engine import api, docker
from tooling.image import base, build, recipe
from tooling.image.base import Base
from tooling.pins import advisories, choose, parse, table
from tooling.pins.advisories import Advisory, Range
from tooling.pins.pin import Pin
from tooling.wheels import locks

GROUND = Base("some-base:tag", "sha256:" + "1" * 64, "mmdebstrap")
OLD = choose.choose("2.8", torch_source="default")  # a row that has a lock


@pytest.mark.parametrize(
    ("version", "introduced", "fixed", "holds"),
    [
        pytest.param("2.9.1+cpu", None, "2.10.0", True, id="below"),
        pytest.param("2.10.0+cpu", None, "2.10.0", False, id="fixed"),
        pytest.param("5.0.0rc2", None, "5.0.0rc3", True, id="candidate-before"),
        pytest.param("5.0.0rc3", None, "5.0.0rc3", False, id="candidate"),
        pytest.param("4.53.3", "4.54.0", "5.3.0", False, id="before-it-was-introduced"),
        pytest.param("4.54.0", "4.54.0", "5.3.0", True, id="introduced"),
        pytest.param("5.2.0", "4.54.0", "5.3.0", True, id="last"),
        pytest.param("0.1", None, None, True, id="every-version"),
    ],
)
def test_a_range_goes_from_introduced_to_before_fixed(
    version: str, introduced: str | None, fixed: str | None, holds: bool
) -> None:
    assert Range("some", introduced, fixed).includes(version) is holds


@pytest.mark.parametrize(
    ("packages", "applies"),
    [
        ({"transformers": "4.46.3", "torch": "2.4.0+cpu"}, True),
        ({"transformers": "4.46.3", "torch": "2.6.0+cpu"}, False),
        ({"transformers": "5.0.0", "torch": "2.4.0+cpu"}, False),
        ({"transformers": "4.46.3"}, False),
    ],
)
def test_an_advisory_applies_where_all_its_ranges_hold(packages: Mapping[str, str], applies: bool) -> None:
    both = Advisory("CVE-1-1", "it", (Range("transformers", None, "5.0.0rc3"), Range("torch", None, "2.6.0")))
    assert both.applies_to(packages) is applies
    assert str(both) == "CVE-1-1: it (transformers below 5.0.0rc3 with torch below 2.6.0)"
    assert both.fix == "use transformers 5.0.0rc3 or later or torch 2.6.0 or later"


def test_an_advisory_without_a_fix_recommends_another_pin() -> None:
    archived = Advisory("some/where#1", "archived", (Range("some", None, None),))
    assert str(archived) == "some/where#1: archived (every version of some)"
    assert archived.fix == "use a pin without some"


def rows_of(identifier: str) -> list[str]:
    return [
        name
        for name, pin in parse.load().pins.items()
        if identifier in [advisory.id for advisory in pin.advisories]
    ]


def test_the_rows_derive_their_advisories_from_their_versions() -> None:
    """Sources: the CVE records; torch-ccl's issue 80 and IPEX's 867."""
    assert parse.load().pin().advisories == parse.load().pin("2.15").advisories == ()
    old = ["2.4", "2.1", "2.0", "1.13", "1.12", "1.10"]
    assert rows_of("CVE-2026-24747") == ["2.8", "2.7", *old]
    assert rows_of("CVE-2026-1839") == rows_of("CVE-2025-32434") == rows_of("CVE-2024-11393") == old
    assert rows_of("CVE-2026-4372") == rows_of("CVE-2026-5241") == ["2.8"]
    assert rows_of("CVE-2023-7018") == ["2.1", "2.0", "1.13", "1.12", "1.10"]
    assert rows_of("CVE-2022-45907") == ["1.12", "1.10"]
    assert rows_of("CVE-2023-47248") == ["1.13", "1.12", "1.10"]
    assert rows_of("intel/torch-ccl#80") == []
    assert rows_of("intel/intel-extension-for-pytorch#867") == ["2.8", "2.7", *old[:-1]]


def own(assignment: str) -> set[str]:
    return {advisory.id for advisory in choose.choose(assignments=[assignment]).advisories}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("transformers=4.57.0", {"CVE-2026-4372", "CVE-2026-5241"}),
        ("transformers=5.2.0", {"CVE-2026-4372", "CVE-2026-5241"}),
        ("transformers=5.3.0", {"CVE-2026-5241"}),
        ("transformers=5.5.0", set()),
        ("torch=2.9.1", {"CVE-2026-24747"}),
        ("torch=2.10.0", set()),
    ],
)
def test_a_users_own_versions_have_their_own_advisories(assignment: str, expected: set[str]) -> None:
    assert own(assignment) == expected


def test_fixed_versions_remove_a_rows_advisories() -> None:
    row = parse.load().pin("2.8")
    fixed = row.with_versions({"torch": "2.13.0+cpu", "transformers": "5.23.0"})
    assert [advisory.id for advisory in fixed.advisories] == ["intel/intel-extension-for-pytorch#867"]


def test_intels_bindings_have_their_own_advisory() -> None:
    assert "intel/torch-ccl#80" in [one.id for one in choose.choose("1.12", ["ccl=intel"]).advisories]


def test_the_matrix_has_one_line_for_an_advisory_with_all_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    table.show(parse.load(), as_json=False)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "CVE-2026-24747" in line]
    assert line.startswith("2.8, 2.7, 2.4, 2.1, 2.0, 1.13, 1.12, 1.10: CVE-2026-24747: ")
    assert line.endswith("(torch below 2.10.0)")
    assert table.row(parse.load().pin("1.10"))["advisories"][0] == "CVE-2026-24747"


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every image is up to date, and no other build holds the lock."""
    monkeypatch.setattr(build, "CACHE", tmp_path)
    monkeypatch.setattr(api, "ensure", lambda: None)
    monkeypatch.setattr(base, "ensure", lambda *_: GROUND)
    monkeypatch.setattr(recipe, "inputs_sha256", lambda *_: "sum")
    monkeypatch.setattr(build, "take_shared_tag", lambda _: None)
    monkeypatch.setattr(build, "built_here", lambda *_: True)
    image = docker.LocalImage("sha256:1", 1, {recipe.INPUTS_LABEL: "sum"}, (), {})
    monkeypatch.setattr(docker, "find_image", lambda _: image)


@pytest.mark.usefixtures("no_engine")
def test_building_prints_one_line_for_each_advisory_and_nothing_else_for_a_sound_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    build.run(OLD)
    said = capsys.readouterr().err.splitlines()
    assert said[:-1] == [f"2.8-default-torch: warning: {advisory}" for advisory in OLD.advisories]
    assert len(said) == len(OLD.advisories) + 1 == 5
    build.run(parse.load().pin("2.13"))
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("no_engine")
def test_building_says_that_debian_no_longer_updates_the_rows_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "read", lambda _: {})
    build.run(parse.load().pin("1.13"))
    assert "1.13: warning: Debian 11 has had no security updates since 2026-08-31" in capsys.readouterr().err


@pytest.mark.usefixtures("no_engine")
def test_the_line_is_printed_before_versions_are_resolved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "path_of", lambda _: Path("/nonexistent"))
    monkeypatch.setattr(locks, "write", lambda pin: say(f"resolving {pin.name}"))
    monkeypatch.setattr(locks, "read", lambda _: {})
    build.run(choose.choose(assignments=["transformers=4.57.0"]))
    said = capsys.readouterr().err.splitlines()
    assert "CVE-2026-4372" in said[1]
    assert "resolving 2.13-own-" in said[2]


def test_the_image_is_labelled_with_its_advisories() -> None:
    made = recipe.labels(OLD, GROUND, {}, "sum")
    assert made["cpu-train-stack.advisories"].split() == [advisory.id for advisory in OLD.advisories]
    assert "cpu-train-stack.advisories" not in recipe.labels(parse.load().pin(), GROUND, {}, "sum")


def test_an_advisory_for_the_pins_versions_changes_the_image_and_another_one_does_not() -> None:
    def image_with(fixed: str) -> Pin:
        return replace(OLD, known_advisories=(Advisory("CVE-2026-1", "it", (Range("torch", None, fixed),)),))

    sums = [recipe.inputs_sha256(image_with(fixed), GROUND) for fixed in ("2.8.1", "2.8.0", "2.7.0")]
    assert sums[0] != sums[1] == sums[2]


def test_the_doctor_reads_what_the_build_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "_context", lambda: "default")  # docker's answer
    argv = recipe.build_argv(OLD, GROUND, tmp_path, tmp_path, {}, OLD.image)
    [passed] = [word.partition("=")[2] for word in argv if word.startswith("ADVISORIES=")]
    file = tmp_path / "advisories.json"
    file.write_text(passed + "\n", encoding="utf-8")
    monkeypatch.setattr(cpu_train_stack.doctor.image, "ADVISORIES", file)
    found = cpu_train_stack.doctor.image.examine_advisories()
    assert [check.detail for check in found] == [str(advisory) for advisory in OLD.advisories]
    assert {check.status for check in found} == {CheckStatus.WARNING}
    assert all(check.fix.startswith("use ") for check in found)
    file.write_text(advisories.document(()), encoding="utf-8")
    [sound] = cpu_train_stack.doctor.image.examine_advisories()
    assert sound.status is CheckStatus.OK


def test_without_the_file_the_doctor_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_train_stack.doctor.image, "ADVISORIES", tmp_path / "advisories.json")
    [check] = cpu_train_stack.doctor.image.examine_advisories()
    assert check.status is CheckStatus.WARNING
    assert check.fix
