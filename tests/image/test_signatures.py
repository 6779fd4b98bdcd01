"""Signatures of images in a real registry, with Debian's cosign: signed, unsigned, another key, a changed SBOM."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import containers, registry
from tooling.basis.errors import UsageError
from tooling.engine import docker
from tooling.image import recipe, sign

LABELS = {
    recipe.PIN_LABEL: "2.13",
    recipe.REVISION_LABEL: "0123456789abcdef",
    recipe.BASE_DIGEST_LABEL: "sha256:" + "1" * 64,
}
BILL = json.dumps({"spdxVersion": "SPDX-2.3", "name": "image"})


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two key pairs. cosign is the machine's own, or Debian 13's package, unpacked."""
    folder = tmp_path_factory.mktemp("keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(sign.PASSWORD, "secret")
        if shutil.which(sign.COSIGN) is None:
            got = subprocess.run(
                ["apt-get", "download", "-qq", "cosign/trixie"],
                cwd=folder,
                capture_output=True,
                check=False,
                timeout=120,
            )
            packages = list(folder.glob("*.deb"))
            if got.returncode != 0 or not packages:
                pytest.skip("there is no cosign, and no package of Debian 13 can be downloaded")
            subprocess.run(["dpkg-deb", "--extract", packages[0], folder], check=True, timeout=60)
            patch.setenv("PATH", f"{folder}/usr/bin:{os.environ['PATH']}")
        for name in ("right", "wrong"):
            make = [sign.find(), "generate-key-pair", f"--output-key-prefix={name}"]
            subprocess.run(make, cwd=folder, check=True, capture_output=True, timeout=60)
        yield folder


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with registry.running() as (address, _name):
        yield address


def pushed(host: str, name: str) -> str:
    """An image of one small file in the registry, by digest."""
    archive, tag = io.BytesIO(), f"{host}/{name}:{containers.unique_name()}"
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 16
        tar.addfile(entry, io.BytesIO(os.urandom(16)))
    subprocess.run(["docker", "import", "-", tag], input=archive.getvalue(), check=True, capture_output=True)
    try:
        subprocess.run(["docker", "push", "--quiet", tag], check=True, capture_output=True, timeout=60)
        shown = docker.output("image", "inspect", "--format={{index .RepoDigests 0}}", tag)
        return shown.strip()
    finally:
        docker.remove_image(tag)


def test_a_signed_image_is_verified_with_its_provenance(host: str, keys: Path) -> None:
    image = pushed(host, "signed")
    sign.sign(image, str(keys / "right.key"), sign.provenance(LABELS, "2" * 64), BILL, print)
    found = sign.verify(image, str(keys / "right.pub"))
    assert found == sign.provenance(LABELS, "2" * 64)
    with pytest.raises(UsageError, match="the signature was made with another key: check --key"):
        sign.verify(image, str(keys / "wrong.pub"))


def test_an_unsigned_image_and_one_without_attestations_are_refused(host: str, keys: Path) -> None:
    image = pushed(host, "unsigned")
    with pytest.raises(UsageError, match="the image is not signed: push it with"):
        sign.verify(image, str(keys / "right.pub"))
    sign._cosign("sign", "--key", str(keys / "right.key"), "--tlog-upload=false", "--yes", image)
    with pytest.raises(UsageError, match="cosign verify-attestation failed"):
        sign.verify(image, str(keys / "right.pub"))


def test_a_bill_of_materials_that_somebody_else_attached_is_refused(host: str, keys: Path, tmp_path: Path) -> None:
    """The image and its provenance have the right signature, but its bill of materials another key's."""
    image = pushed(host, "changed")
    sign._cosign("sign", "--key", str(keys / "right.key"), "--tlog-upload=false", "--yes", image)
    for kind, text in ((sign.PROVENANCE, json.dumps(sign.provenance(LABELS, "2" * 64))), (sign.BILL, BILL)):
        file = tmp_path / f"{kind}.json"
        file.write_text(text.replace("image", "changed"))
        key = str(keys / ("right.key" if kind == sign.PROVENANCE else "wrong.key"))
        words = ("--key", key, "--tlog-upload=false", "--yes", "--type", kind, "--predicate", str(file))
        sign._cosign("attest", *words, image)
    with pytest.raises(UsageError, match="cosign verify-attestation failed"):
        sign.verify(image, str(keys / "right.pub"))


@pytest.mark.parametrize(
    ("reference", "key", "expected"),
    [
        ("registry.example/stack:2.13", "right.pub", "is not an image by digest"),
        ("registry.example/stack@sha256:" + "1" * 64, "none.pub", "expected the file cosign.pub"),
    ],
)
def test_a_bad_option_is_reported(reference: str, key: str, expected: str, keys: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        sign.verify(reference, str(keys / key))
    with pytest.raises(UsageError, match="expected a file of cosign generate-key-pair"):
        sign.check_key(str(keys / "none.key"))
