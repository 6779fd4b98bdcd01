"""Records of OSV: which versions are affected, and files that are no records."""

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from cpu_train_stack.cli.errors import UsageError
from tooling.pins import osv

TWO_BRANCHES = [{"introduced": "2.0.0"}, {"fixed": "2.0.6"}, {"introduced": "0"}, {"fixed": "1.26.17"}]


def record(*events: dict[str, str], name: str = "Some_Package", **fields: Any) -> dict[str, Any]:
    """A record of one package with one range."""
    affected = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [
            {"type": "GIT", "repo": "https://example.org/some", "events": [{"introduced": "0"}]},
            {"type": "ECOSYSTEM", "events": list(events)},
        ],
    }
    return {"id": "GHSA-1", "aliases": ["CVE-1-1"], "summary": "it breaks", "affected": [affected], **fields}


def write(folder: Path, *records: dict[str, Any]) -> Path:
    for number, document in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(document))
    return folder


def found(folder: Path, version: str, *records: dict[str, Any]) -> list[osv.KnownVulnerability]:
    return osv.find({"some-package": version}, osv.read(write(folder, *records)))


@pytest.mark.parametrize(
    ("events", "version", "affected"),
    [
        ([{"introduced": "0"}, {"fixed": "2.0"}], "1.9+cpu", True),
        ([{"introduced": "0"}, {"fixed": "2.0"}], "0.dev1", True),
        ([{"introduced": "0"}, {"fixed": "2.0"}], "2.0", False),
        ([{"introduced": "0"}, {"fixed": "2.0"}], "2.0rc1", True),
        ([{"introduced": "1.5"}], "1.4", False),
        ([{"introduced": "1.5"}], "99", True),
        ([{"introduced": "1.5"}, {"last_affected": "2.0"}], "2.0+cpu", True),
        ([{"introduced": "1.5"}, {"last_affected": "2.0"}], "2.0.1", False),
        (TWO_BRANCHES, "2.0.5", True),
        (TWO_BRANCHES, "2.0.6", False),
        (TWO_BRANCHES, "1.26.16", True),
        (TWO_BRANCHES, "1.26.17", False),
        ([{"introduced": "0"}, {"fixed": "2004d"}], "1.0", True),
    ],
)
def test_a_version_is_affected_between_events(
    tmp_path: Path, events: list[dict[str, str]], version: str, affected: bool
) -> None:
    assert bool(found(tmp_path, version, record(*events))) is affected


def test_a_listed_version_is_affected_without_a_range(tmp_path: Path) -> None:
    document = record()
    document["affected"][0] |= {"ranges": [], "versions": ["2004d", "1.0", "1.2.0"]}
    assert found(tmp_path, "1.2", document)
    assert not found(tmp_path, "1.1", document)


def test_a_finding_has_the_versions_that_fix_it(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "1.26.0+cpu", record(*TWO_BRANCHES))
    assert finding == osv.KnownVulnerability(
        "some-package", "1.26.0+cpu", ("GHSA-1", "CVE-1-1"), "it breaks", ("1.26.17",)
    )
    assert osv.Affected("a", frozenset(), ()).fixes(Version("1")) == []


def test_other_ecosystems_other_packages_and_withdrawn_records_are_not_findings(tmp_path: Path) -> None:
    other = record({"introduced": "0"})
    other["affected"][0]["package"]["ecosystem"] = "npm"
    withdrawn = record({"introduced": "0"}, withdrawn="2024-01-01T00:00:00Z")
    assert found(tmp_path, "1.0", other, withdrawn, record({"introduced": "0"}, name="another")) == []


def test_two_records_of_one_vulnerability_are_one_finding(tmp_path: Path) -> None:
    same = record({"introduced": "0"}, id="PYSEC-1", aliases=["CVE-1-1"])
    another = record({"introduced": "0"}, id="PYSEC-2", aliases=["CVE-1-2"], summary="", details="  more\n" * 99)
    first, second = found(tmp_path, "1.0", record({"introduced": "0"}), same, another)
    assert (first.ids[0], second.ids[0]) == ("GHSA-1", "PYSEC-2")
    assert len(second.summary) == 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[]", "0.json is not a record of OSV", id="list"),
        pytest.param("{", "0.json is not a record of OSV", id="no-json"),
        pytest.param("[" * 200_000, "0.json is not a record of OSV", id="deep"),
        pytest.param(
            '{"id": "A", "affected": [{"package": {"ecosystem": "PyPI"}}]}', "KeyError: 'name'", id="name"
        ),
        pytest.param("{}", "KeyError: 'id'", id="id"),
        pytest.param(None, "has no .json files, expected osv.dev's dump of PyPI", id="empty"),
    ],
)
def test_another_folder_is_one_line(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "0.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        osv.read(tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_dump_that_is_not_unpacked_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "all.zip").touch()
    with pytest.raises(UsageError, match=r"all\.zip is not a folder: unpack it first"):
        osv.read(tmp_path / "all.zip")
    with pytest.raises(UsageError, match=r"expected a folder with osv\.dev's dump"):
        osv.read(tmp_path / "none")
