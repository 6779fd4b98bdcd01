"""The bill of materials."""

import json
from pathlib import Path

import pytest

from tests.unit.tooling.image.examples import FOUND, PIN
from tooling.engine import api, docker
from tooling.engine.docker import LocalImage
from tooling.image import build, inspect, sbom
from tooling.image.build import Image
from tooling.image.inspect import Inventory


def test_a_bill_of_materials_is_valid_spdx_and_names_every_package() -> None:
    # Imported here because they are slow to import, and every pytest process imports all test files.
    from spdx_tools.spdx.parser.json.json_parser import JsonLikeDictParser
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

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


def test_a_bill_describes_one_image_although_a_build_moves_its_tag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image, used = Image(PIN.image, "sha256:1", 1, built=False, seconds=0.0), set()

    def read_image(reference: str) -> LocalImage:
        used.add(reference)
        return LocalImage(reference, 1, {}, (), {})

    def inventory(reference: str) -> Inventory:
        used.add(reference)
        return FOUND

    monkeypatch.setattr(api, "ensure", lambda: None)
    monkeypatch.setattr(build, "build", lambda _pin: image)
    monkeypatch.setattr(docker, "read_image", read_image)
    monkeypatch.setattr(inspect, "inventory", inventory)
    sbom.run(PIN, str(tmp_path / "bill.json"))
    assert used == {"sha256:1"}
    assert json.loads((tmp_path / "bill.json").read_text())["name"] == PIN.image
