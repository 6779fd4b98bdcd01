"""Signatures of images in a real registry, with Debian's cosign: signed, unsigned, another key, a changed SBOM."""

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tests import containers, registry
from tests.unit.tooling.image.examples import FOUND
from tooling.basis.paths import ROOT
from tooling.engine import docker
from tooling.image import build, inspect, push, recipe, sign
from tooling.pins import parse, status

LABELS = {
    recipe.PIN_LABEL: "2.13",
    recipe.REVISION_LABEL: "0123456789abcdef",
    recipe.BASE_DIGEST_LABEL: "sha256:" + "1" * 64,
}
LOCKS = {"wheels' lock": "2" * 64}
SPDX = "https://spdx.dev/Document"
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


def made(tag: str) -> None:
    """An image of one small file in the engine, with the labels of a build."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("file")
        entry.size = 16
        tar.addfile(entry, io.BytesIO(os.urandom(16)))
    labels = [f"--change=LABEL {name}={value}" for name, value in LABELS.items()]
    argv = ["docker", "import", *labels, "-", tag]
    subprocess.run(argv, input=archive.getvalue(), check=True, capture_output=True)


def pushed(host: str, name: str) -> str:
    """An image in the registry, by digest."""
    tag = f"{host}/{name}:{containers.unique_name()}"
    made(tag)
    try:
        subprocess.run(["docker", "push", "--quiet", tag], check=True, capture_output=True, timeout=60)
        shown = docker.output("image", "inspect", "--format={{index .RepoDigests 0}}", tag)
        return shown.strip()
    finally:
        docker.remove_image(tag)


def test_a_signed_image_is_verified_with_its_provenance(host: str, keys: Path) -> None:
    image = pushed(host, "signed")
    sign.sign(image, str(keys / "right.key"), sign.provenance(LABELS, LOCKS), BILL)
    found = sign.verify(image, str(keys / "right.pub"))
    assert found == sign.provenance(LABELS, LOCKS)
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
    for kind, text in ((sign.PROVENANCE, json.dumps(sign.provenance(LABELS, LOCKS))), (sign.BILL, BILL)):
        file = tmp_path / f"{kind}.json"
        file.write_text(text.replace("image", "changed"))
        key = str(keys / ("right.key" if kind == sign.PROVENANCE else "wrong.key"))
        words = ("--key", key, "--tlog-upload=false", "--yes", "--type", kind, "--predicate", str(file))
        sign._cosign("attest", *words, image)
    with pytest.raises(UsageError, match="cosign verify-attestation failed"):
        sign.verify(image, str(keys / "right.pub"))


def test_commands_run_only_a_pushed_image_that_its_key_verifies(
    host: str, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `./inv push --sign`, only the checks before the push are replaced: they need a build and minutes."""
    tag = containers.unique_name()
    made(tag)
    image = docker.read_image(tag)
    try:
        for module, name, value in (
            (push, "clean_revision", LABELS[recipe.REVISION_LABEL]),
            (build, "build", build.Image(tag, image.id, image.size_bytes, False, 0.0)),
            (inspect, "inventory", FOUND),
            (inspect, "doctor", []),
            (inspect, "mismatch", None),
            (status, "is_tested", True),
        ):
            monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
        key = str(keys / "right.key")
        push.run(f"{host}/complete", parse.load().pin(), False, str(tmp_path), key)
    finally:
        docker.call("image", "rm", "--force", image.id)  # also its name by digest, from the pull after the push
    lock = f"--image-lock={tmp_path / push.LOCK_FILE}"
    reference = json.loads((tmp_path / push.LOCK_FILE).read_text())["image"]
    (tmp_path / "hosts").write_text("alpha\n")
    verify: tuple[str, ...] = ("verify", reference)
    up: tuple[str, ...] = ("up", lock, f"--output={tmp_path / 'output'}")
    launch: tuple[str, ...] = ("launch", lock, f"--hosts={tmp_path / 'hosts'}", "--dry-run")
    manifest: tuple[str, ...] = ("manifest", "pytorchjob", lock, "--cpus=2", "--memory=8Gi")
    right, wrong = keys / "right.pub", keys / "wrong.pub"
    for command in (verify, manifest):
        assert f"verified {reference}" in inv(*command, key=right)
    for command in (up, (*up, "--print-compose"), launch, manifest):
        assert f"{reference}: cosign verify failed" in inv(*command, key=wrong, refused=True)
    change_bill(reference)
    for command in (verify, manifest):
        assert f"{reference}: cosign verify-attestation failed" in inv(*command, key=right, refused=True)


def inv(*words: str, key: Path, refused: bool = False) -> str:
    """What ./inv reports with a key: one line. A command that is refused prints nothing else."""
    command = [] if words[0] == "verify" else ["--", "run", "x.py"]
    argv = [str(ROOT / "inv"), *words, f"--key={key}", *command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == (contract.USAGE_EXIT_CODE if refused else 0), done.stdout + done.stderr
    assert done.stdout == "" or not refused, done.stdout
    (line,) = done.stderr.splitlines()
    return line


def change_bill(reference: str) -> None:
    """Change a version in the signed bill of materials, in the registry."""
    target, _, digest = reference.partition("@")
    address, _, name = target.partition("/")
    base, kind = f"http://{address}/v2/{name}", "application/vnd.oci.image.manifest.v1+json"
    url = f"{base}/manifests/{digest.replace(':', '-')}.att"
    manifest: dict[str, Any] = requests.get(url, headers={"Accept": kind}, timeout=60).json()
    layer = next(layer for layer in manifest["layers"] if layer["annotations"]["predicateType"] == SPDX)
    envelope = requests.get(f"{base}/blobs/{layer['digest']}", timeout=60).json()
    statement = base64.b64decode(envelope["payload"])
    assert FOUND.apt[0]["version"].encode() in statement
    changed = statement.replace(FOUND.apt[0]["version"].encode(), b"1")
    envelope["payload"] = base64.b64encode(changed).decode()
    blob = json.dumps(envelope).encode()
    layer |= {"digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}
    place = requests.post(f"{base}/blobs/uploads/", timeout=60).headers["Location"]
    requests.put(place, params={"digest": layer["digest"]}, data=blob, timeout=60).raise_for_status()
    requests.put(url, json=manifest, headers={"Content-Type": kind}, timeout=60).raise_for_status()


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
