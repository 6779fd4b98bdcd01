"""`./inv sbom`: an image's Debian and Python packages as SPDX 2.3 JSON, validated with spdx-tools.

The document of an image is always the same, byte for byte: its time is in the image's label, and its namespace
ends with the sha256 of the image's content.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from license_expression import ExpressionError, get_spdx_licensing
from spdx_tools.spdx.jsonschema.document_converter import DocumentConverter
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import write_output
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.engine import api, docker
from tooling.image import build, inspect, recipe
from tooling.image.inspect import Inventory
from tooling.pins.pin import Pin

NAME_SPACE = "https://spdx.org/spdxdocs/cpu-train-stack"
CREATED_LABEL = "org.opencontainers.image.created"
IMAGE_ID = "SPDXRef-image"
LICENSES = get_spdx_licensing()


def run(pin: Pin, output: str | None) -> None:
    """Write the bill of materials of a pin's image. Builds the image if it is not up to date."""
    api.ensure()
    image = build.build(pin)
    path = Path(output) if output else CACHE / "sbom" / f"{pin.name}.spdx.json"
    if path.is_dir():
        raise UsageError(f"--output is {output!r}, a folder: give the name of a file")
    say(f"listing the packages of {image.tag}")
    found = inspect.inventory(image.id)  # a build may move the tag
    labels = docker.read_image(image.id).labels
    write_output(path, document(image.tag, inspect.content_sha256(image.id), labels, found), "--output")
    say(f"wrote {path}: {len(found.apt)} Debian and {len(found.python_packages)} Python packages")


def document(name: str, content: str, labels: Mapping[str, str], found: Inventory) -> str:
    """The SPDX 2.3 JSON of an image's inventory. Raises UsageError if spdx-tools finds a mistake.

    `content`: tooling.image.inspect.content_sha256.
    """
    creation = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=name,
        document_namespace=f"{NAME_SPACE}/{quote(found.pin)}/{content}",
        creators=[Actor(ActorType.TOOL, f"cpu-train-stack-{recipe.project_version()}")],
        created=_time(labels.get(CREATED_LABEL, "")),
    )
    root = Package(
        spdx_id=IMAGE_ID,
        name="cpu-train-stack",
        version=labels.get("org.opencontainers.image.version", found.pin),
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        primary_package_purpose=PackagePurpose.CONTAINER,
    )
    parts = [_apt(row, found.debian) for row in found.apt] + [_python(row) for row in found.python_packages]
    relations = [Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, IMAGE_ID)]
    relations += [Relationship(IMAGE_ID, RelationshipType.CONTAINS, part.spdx_id) for part in parts]
    bill = Document(creation, packages=[root, *parts], relationships=relations)
    if problems := validate_full_spdx_document(bill, "SPDX-2.3"):
        raise UsageError(f"the bill of materials of {name} is not SPDX 2.3: {problems[0].validation_message}")
    return json.dumps(DocumentConverter().convert(bill), indent=2) + "\n"


def _apt(row: Mapping[str, str], debian: str) -> Package:
    version = quote(row["version"], safe="")
    url = f"pkg:deb/debian/{quote(row['name'])}@{version}?arch={row['architecture']}&distro=debian-{debian}"
    package = _package(f"SPDXRef-deb-{_word(row['name'])}-{row['architecture']}", row, url)
    package.source_info = f"built from {row['source']} {row['source_version']}"
    return package


def _python(row: Mapping[str, str]) -> Package:
    url = f"pkg:pypi/{row['name']}@{quote(row['version'], safe='')}"
    package = _package(f"SPDXRef-python-{_word(row['name'])}", row, url)
    if row["license"]:
        try:
            package.license_declared = LICENSES.parse(row["license"], validate=True)
        except ExpressionError:  # not a license identifier of SPDX
            package.license_comment = f"declared as {row['license']!r}"
    return package


def _package(identifier: str, row: Mapping[str, str], url: str) -> Package:
    return Package(
        spdx_id=identifier,
        name=row["name"],
        version=row["version"],
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        license_declared=SpdxNoAssertion(),
        external_references=[ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", url)],
    )


def _word(name: str) -> str:
    """A name with the characters of an SPDX identifier: letters, digits, dots and hyphens."""
    return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in name)


def _time(created: str) -> datetime:
    """The label's time in UTC. The beginning of 1970 for an image without the label, never the current time."""
    try:
        return datetime.fromisoformat(created).astimezone(UTC).replace(tzinfo=None)
    except ValueError:
        return datetime(1970, 1, 1)  # UTC without a time zone, as spdx-tools expects
