"""The bill of materials."""

from __future__ import annotations

import json

from spdx_tools.spdx.parser.json.json_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tests.unit.tooling.image.examples import FOUND
from tooling.image import sbom


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
