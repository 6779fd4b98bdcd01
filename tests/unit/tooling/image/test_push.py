"""The checks before a push, the image lock and the bill of materials."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from spdx_tools.spdx.parser.json.json_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tooling.basis.errors import UsageError
from tooling.image import inspect, lock, push, recipe, sbom
from tooling.image.choice import Choice
from tooling.image.inspect import Inventory
from tooling.image.lock import ImageLock
from tooling.image.registry import Target
from tooling.pins import parse

PIN = parse.load().pin()
LOCK = ImageLock(
    image="registry.example:5000/team/stack@sha256:" + "1" * 64,
    tag="registry.example:5000/team/stack:0.1.0-2.13-0123456789ab",
    pin="2.13",
    revision="0123456789abcdef",
    labels={"cpu-train-stack.pin": "2.13"},
    sbom_sha256="2" * 64,
)
APT = {"name": "libstdc++6", "version": "1:12.2.0-14+x", "architecture": "amd64"}
FOUND = Inventory(
    pin=PIN.name,
    python=PIN.python,
    debian=str(PIN.debian.number),
    apt=({**APT, "source": "gcc-12", "source_version": "12.2.0-14"},),
    python_packages=(
        *({"name": name, "version": version, "license": ""} for name, version in PIN.packages.items()),
        {"name": "oneccl-bind-pt", "version": "2.13.0", "license": "Apache-2.0"},
        {"name": "odd.one", "version": "1", "license": "No-Such-License"},
    ),
)
CHECKS = [
    {"name": "versions", "status": "ok", "detail": "all"},
    {"name": "CPUs", "status": "warning", "detail": ""},
]


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    lock.write(LOCK, tmp_path / "image.lock.json")
    assert lock.read(tmp_path / "image.lock.json") == LOCK


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"image": "stack:2.13"}, "image is 'stack:2.13', expected HOST/NAME@sha256", id="tag"),
        pytest.param({"sbom_sha256": "abc"}, "sbom_sha256 is 'abc'", id="sum"),
        pytest.param({"labels": []}, "a value has the wrong type", id="labels"),
        pytest.param({"more": 1}, "unexpected keyword argument 'more'", id="foreign"),
    ],
)
def test_a_lock_that_push_did_not_write_is_one_line(
    tmp_path: Path, change: dict[str, object], expected: str
) -> None:
    path = tmp_path / "image.lock.json"
    path.write_text(json.dumps({**asdict(LOCK), **change}))
    with pytest.raises(UsageError, match=r"is not a file written by \./inv push") as caught:
        lock.read(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_a_lock_that_is_no_json_object_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "image.lock.json").write_text(text)
    with pytest.raises(UsageError, match=r"is not a file written by \./inv push"):
        lock.read(tmp_path / "image.lock.json")


@pytest.mark.parametrize(
    ("text", "host", "name"),
    [
        ("localhost:5000/stack", "localhost:5000", "stack"),
        ("127.0.0.1:5000/team/stack", "127.0.0.1:5000", "team/stack"),
        ("registry.example/team/cpu-train_stack", "registry.example", "team/cpu-train_stack"),
        ("registry:5000/stack", "registry:5000", "stack"),
    ],
)
def test_a_registry_is_a_host_and_a_name(text: str, host: str, name: str) -> None:
    assert Target.parse(text) == Target(host, name)


@pytest.mark.parametrize(
    "text",
    ["stack", "team/stack", "registry.example/Stack", "registry.example/a:tag", "http://h.example/a", "h.x/"],
)
def test_another_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="expected HOST"):
        Target.parse(text)


def test_a_lock_and_a_pin_cannot_be_combined() -> None:
    with pytest.raises(UsageError, match="do not combine it with --pin"):
        Choice(pin="2.13", image_lock="image.lock.json")


def test_a_dirty_tree_or_no_tree_is_not_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    with pytest.raises(UsageError, match="not a git checkout"):
        push.clean_revision()
    for words in (["init"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    assert len(push.clean_revision()) == 40
    (tmp_path / "new").touch()
    with pytest.raises(UsageError, match="the tree is dirty"):
        push.clean_revision()


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


def test_a_bill_of_materials_is_valid_spdx_and_names_every_package() -> None:
    labels = {"org.opencontainers.image.created": "2026-11-20T10:00:00+02:00"}
    text = sbom.document("stack:2.13", "c" * 64, labels, FOUND)
    assert text == sbom.document("stack:2.13", "c" * 64, labels, FOUND)
    document = json.loads(text)
    assert validate_full_spdx_document(JsonLikeDictParser().parse(document)) == []
    assert document["creationInfo"]["created"] == "2026-11-20T08:00:00Z"
    packages = {package["name"]: package for package in document["packages"]}
    urls = {
        name: package["externalRefs"][0]["referenceLocator"]
        for name, package in packages.items()
        if name in ("torch", "libstdc++6")
    }
    assert urls["torch"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    assert urls["libstdc++6"] == "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14%2Bx?arch=amd64&distro=debian-12"
    assert packages["oneccl-bind-pt"]["licenseDeclared"] == "Apache-2.0"
    assert packages["odd.one"]["licenseDeclared"] == "NOASSERTION"
    assert "No-Such-License" in packages["odd.one"]["licenseComments"]
    assert len(packages) == 1 + len(FOUND.apt) + len(FOUND.python_packages)
