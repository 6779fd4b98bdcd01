"""`./inv advisories`: what it prints about a row's locked versions, and when it fails."""

import json
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.pins.test_osv import record, write
from tooling.pins import choose
from tooling.pins.osv import KnownVulnerability
from tooling.wheels import advisories, locks

ROW = choose.choose("2.8", torch_source="default")  # a row that has a lock, and advisories in the table
LISTED = record({"introduced": "0"}, name="torch", aliases=["CVE-2026-24747"])
NEW = record({"introduced": "0"}, {"fixed": "999"}, name="Jinja2", id="GHSA-2", aliases=[])


def test_without_files_the_projects_table_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    advisories.run(ROW, None, False)
    *shown, last = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1] for line in shown] == [advisory.id for advisory in ROW.advisories]
    assert "; --osv FOLDER also searches osv.dev's dump" in last


def test_an_empty_folder_is_not_left_out() -> None:
    with pytest.raises(UsageError, match="--osv is empty"):
        advisories.run(ROW, "", False)


def test_a_finding_that_the_table_lists_is_shown_and_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    advisories.run(ROW, str(write(tmp_path, LISTED)), False)
    assert f"1 in {tmp_path}, 0 of them not in images/versions.toml" in capsys.readouterr().out


def test_brackets_in_a_finding_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "Path traversal in [/etc/passwd] of transformers[torch] :bug:"
    finding = KnownVulnerability("jinja2", "1", ("GHSA-2",), text, ())
    advisories._show(ROW, 1, [finding], [finding], "/tmp/a[x]")
    shown = capsys.readouterr().out
    assert text in shown
    assert "in /tmp/a[x]," in shown


def test_a_finding_that_the_table_lacks_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write(tmp_path, LISTED, NEW))
    for as_json in (False, True):
        with pytest.raises(Exit) as caught:
            advisories.run(ROW, folder, as_json)
        assert caught.value.code == 1
    shown, document = capsys.readouterr().out.split("not in images/versions.toml\n")
    assert "2 in " in shown
    assert "GHSA-2" in shown
    found = json.loads(document)
    assert [(row["package"], row["ids"][0], row["listed"]) for row in found["osv"]] == [
        ("jinja2", "GHSA-2", False),
        ("torch", "GHSA-1", True),
    ]
    assert found["osv"][0]["version"] == locks.read(ROW)["jinja2"].version
    assert found["osv"][0]["fixed"] == ["999"]
