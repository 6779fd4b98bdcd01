"""images/versions.toml: a valid file is parsed, a mistake is one line with the fix."""

import json
import re
from pathlib import Path

import pytest

import tasks
from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tests import documents
from tests.unit.tooling.cli.program import run
from tooling.basis.identity import IDENTITY
from tooling.basis.paths import ROOT
from tooling.pins import parse, table

CHOICES = ", ".join(parse.load().pins)
VERSIONS = parse.VERSIONS_FILE.read_text(encoding="utf-8")


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """The real file with one text replaced."""
    assert old in VERSIONS
    path = tmp_path / "versions.toml"
    path.write_text(VERSIONS.replace(old, new, 1), encoding="utf-8")
    return path


def test_without_a_name_the_default_pin_is_chosen() -> None:
    loaded = parse.load()
    assert loaded.pin() is loaded.pins[loaded.default]
    assert loaded.pin(loaded.default) is loaded.pin()


def test_a_pin_names_its_image_and_its_requirements() -> None:
    pin = parse.load().pin("2.13")
    assert pin.image == f"cpu-train-stack:2.13-{IDENTITY}"
    assert f"torch=={pin.packages['torch']}" in pin.requirements
    assert list(pin.requirements) == sorted(pin.requirements)
    assert pin.sources["torch"].url.startswith("https://")


def test_a_pin_cannot_be_changed() -> None:
    pin = parse.load().pin()
    with pytest.raises(TypeError):
        pin.packages["torch"] = "1.0"  # type: ignore[index] # the point of the test
    with pytest.raises(AttributeError):
        pin.python = "3.9"  # type: ignore[misc] # the point of the test


def test_an_unknown_pin_lists_the_choices() -> None:
    with pytest.raises(UsageError) as caught:
        parse.load().pin("2.12")
    assert str(caught.value) == f"unknown pin '2.12': choose one of {CHOICES}"
    assert caught.value.exit_code == contract.USAGE_EXIT_CODE


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param("debian = 12", "debain = 12", "unknown key 'debain' (did you mean 'debian'?)", id="typo"),
        pytest.param(
            "debian = 12", "zzz = 1\ndebian = 12", "unknown key 'zzz': the keys are debian", id="foreign"
        ),
        pytest.param('torch = "2.13.0+cpu"', 'torhc = "2.13.0"', "(did you mean 'torch'?)", id="package-typo"),
        pytest.param("debian = 12\n", "", "pin 2.13: missing debian: the keys are", id="no-debian"),
        pytest.param('torch = "2.13.0+cpu"\n', "", "packages: missing torch: the keys are", id="no-torch"),
        pytest.param('default = "2.13"', 'defualt = "2.13"', "(did you mean 'default'?)", id="top-level-typo"),
        pytest.param('default = "2.13"', "", "missing default", id="no-default"),
        pytest.param(
            'default = "2.13"', 'default = "9"', "default = '9' is unknown: choose one of 2.13", id="default"
        ),
        pytest.param('default = "2.13"', "default = [1]", "default = [1] is unknown", id="default-list"),
        pytest.param(
            "debian = 12", "debian = 14", "debian = 14 is unknown: choose one of 11, 12, 13", id="release"
        ),
        pytest.param("debian = 12", "debian = [12]", "debian = [12] is unknown", id="release-list"),
        pytest.param("debian = 12", "debian = 13", "python = '3.11', but Debian 13 has 3.13", id="debian-python"),
        pytest.param(
            'python = "3.11"', 'python = "3.9"', "python = '3.9', but Debian 12 has 3.11", id="python-debian"
        ),
        pytest.param(
            'torch = "pytorch-cpu"', 'torch = "mine"', "torch = 'mine' is unknown: choose one of", id="source"
        ),
        pytest.param(
            'torch = "pytorch-cpu"', "torch = {}", "torch = {} is unknown: choose one of", id="source-table"
        ),
        pytest.param(
            'torch = "pytorch-cpu"', 'torhc = "pytorch-cpu"', "(did you mean 'torch'?)", id="source-of-nothing"
        ),
        pytest.param(
            'source = "intel-cpu"', 'source = "mine"', "2.7, intel: source = 'mine' is unknown", id="intel-source"
        ),
        pytest.param(
            'intel = { version = "2.7.0+cpu"',
            'intel = { version = "new"',
            "version = 'new', expected",
            id="intel-version",
        ),
        pytest.param('nearest = "1.10"', 'nearest = "1.11"', "nearest = '1.11' is unknown", id="nearest"),
        pytest.param('why = "the', 'wyh = "the', "refused 1.9: unknown key 'wyh' (did you mean 'why'?)", id="why"),
        pytest.param(
            'fixed = "2.10.0"', 'fixed = "new"', "advisory 3, affected torch: fixed = 'new', expected", id="fixed"
        ),
        pytest.param('{ fixed = "2.10.0"', '{ fxied = "2"', "(did you mean 'fixed'?)", id="bound"),
        pytest.param("affected.torch", "affected.trch", "affected = 'trch' is unknown", id="advisory"),
        pytest.param('affected.torch = { fixed = "2.10.0" }', "affected = {}", "affected is empty", id="no-range"),
        pytest.param('"CVE-2026-24747"', '"2026-24747"', "id = '2026-24747', expected CVE-", id="id"),
        pytest.param('pytorch-cpu = "https', 'pytorch-cpu = "htps', "expected a URL", id="index-no-url"),
        pytest.param(
            '"2.13.0+cpu"', '">=2.13"', "torch = '>=2.13', expected an exact version", id="version-range"
        ),
        pytest.param('"2.13.0+cpu"', '"2.13.*"', "torch = '2.13.*', expected an exact version", id="version-star"),
        pytest.param('"2.13.0+cpu"', "2.13", "torch = 2.13, expected an exact version", id="version-number"),
        pytest.param('"2.13.0+cpu"', '"2.13.0 --pre"', "expected an exact version", id="version-option"),
        pytest.param(
            "@sha256:96e378d7", "@sha256:96e378", "expected an image reference with its digest", id="digest"
        ),
        pytest.param(
            "slim@sha256:96e3", "slim:96e3", "expected an image reference with its digest", id="no-digest"
        ),
        pytest.param('"libtcmalloc-minimal4"', '"-o x"', "expected an apt package's name", id="apt-package"),
        pytest.param('[pins."2.13"]', '[pins."2.13"', "is not valid TOML", id="broken-toml"),
        pytest.param("[indexes]", "[[indexes]]", "indexes is list, expected a table", id="not-a-table"),
    ],
)
def test_a_wrong_row_is_one_line_with_what_was_found_and_expected(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse.load(changed(tmp_path, old, new))
    message = str(caught.value)
    assert expected in message
    assert message.startswith("versions.toml")
    assert "\n" not in message
    assert caught.value.exit_code == contract.USAGE_EXIT_CODE


def test_each_row_with_a_mistake_is_one_line(tmp_path: Path) -> None:
    path = changed(tmp_path, '[pins."2.13"]', '[pins."2 13"]')
    path.write_text(path.read_text().replace('default = "2.13"', 'default = "2.15"'))
    with pytest.raises(UsageError) as caught:
        parse.load(path)
    assert str(caught.value).splitlines() == [
        "versions.toml, pin 2 13: a pin's name = '2 13', expected characters of an image's tag, such as 2.13",
        "versions.toml, pin 2.13: missing debian, python, tcmalloc_package: the keys are debian, python, "
        "tcmalloc_package, sources, packages, build_packages, base, intel",
    ]


def test_a_file_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "versions.toml"
    for content in (b"default = '\xff'", b"default = " + b"[" * 50_000):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"versions\.toml is not valid TOML: .*"):
            parse.load(path)


def test_the_error_for_a_missing_file_names_its_expected_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"expected {tmp_path}/versions.toml"):
        parse.load(tmp_path / "versions.toml")


def test_matrix_as_json_is_one_document_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(tasks.SECTIONS, ["matrix", "--json"], capsys)
    assert code == 0, err
    rows = json.loads(out)
    assert documents.missing("matrix", rows) == []
    assert [row["pin"] for row in rows] == list(parse.load().pins)
    first = rows[0]
    assert {"pin", "torch", "ipex", "ccl", "transformers", "python", "debian", "status", "eol"} <= first.keys()
    assert (first["torch"], first["python"], first["debian"]) == ("2.13.0+cpu", "3.11", "12")
    assert first["ipex"] is None


def test_matrix_as_a_table_has_every_pin_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    table.show(parse.load(), as_json=False)
    shown = capsys.readouterr().out
    assert all(word in shown for word in (*table.COLUMNS[:8], *parse.load().pins, "2.13.0+cpu"))
    assert shown.count("2026-08-31 (over)") == 4


def test_an_unknown_pin_on_the_command_line_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(tasks.SECTIONS, ["build", "--pin", "2.12"], capsys)
    assert (code, out) == (contract.USAGE_EXIT_CODE, "")
    assert err == f"unknown pin '2.12': choose one of {CHOICES}\n"


def test_the_readmes_table_is_the_matrix() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [
        line.replace(" (default)", "").strip("| ").split(" | ")[:7]
        for line in readme.splitlines()
        if re.match(r"\| [0-9]+\.[0-9]+ ", line)
    ]
    columns = ("pin", "torch", "transformers", "accelerate", "ipex", "python", "debian")
    rows = [table.row(pin) for pin in parse.load().pins.values()]
    assert shown == [[row[column] or "-" for column in columns] for row in rows]
