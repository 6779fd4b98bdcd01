"""What is checked before an image is pushed: its commit, the key and the folder for the files."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import sha256_of
from tests.unit.tooling.image.examples import FOUND, PIN
from tooling.engine import api, docker
from tooling.image import build, inspect, push, recipe, sign
from tooling.pins import added, status
from tooling.pins.pin import DEBIAN_RELEASES, Pin
from tooling.wheels import locks


def test_a_dirty_tree_or_no_tree_is_not_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    with pytest.raises(UsageError, match="not a git checkout"):
        push.clean_revision()
    git(tmp_path, "init")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--allow-empty", "-m", "x")
    assert len(push.clean_revision()) == 40
    index = tmp_path / ".git" / "index"
    index.write_bytes(b"broken")  # git status fails
    with pytest.raises(UsageError, match="the tree is dirty"):
        push.clean_revision()
    index.unlink()
    git(tmp_path, "config", "status.showUntrackedFiles", "no")
    (tmp_path / "new").touch()
    with pytest.raises(UsageError, match="the tree is dirty"):
        push.clean_revision()


def test_a_checkout_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    git(tmp_path, "init")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--allow-empty", "-m", "x")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")  # it may declare every folder safe
    with pytest.raises(UsageError, match=r"belongs to another user.* git config --global --add safe.directory"):
        push.clean_revision()


def test_the_commit_of_another_checkout_around_the_folder_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--allow-empty", "-m", "x")
    (tmp_path / "inner").mkdir()
    monkeypatch.setattr(recipe, "ROOT", tmp_path / "inner")
    assert recipe.revision() == ("unknown", "unknown", "unknown")


REVISION = "0123456789abcdef"


@dataclass
class Pushed:
    """A push of an image without an engine, a registry and cosign: what was sent, and what was signed."""

    pin: Pin
    labels: dict[str, str]
    tags: list[str] = field(default_factory=list)
    predicates: list[Mapping[str, Any]] = field(default_factory=list)

    def find(self, *_: object) -> None:
        """No tag exists yet."""

    def push(self, _image: str, tag: str) -> str:
        self.tags.append(tag)
        return "sha256:" + "3" * 64

    def sign(self, _reference: str, _key: str, predicate: Mapping[str, Any], _bill: str) -> None:
        self.predicates.append(predicate)


@pytest.fixture
def pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pushed:
    monkeypatch.setattr(locks, "OWN_LOCKS", tmp_path)
    pin = PIN.with_added(added.parse(["mine==1.0"]))
    locks.added_path_of(pin).write_text("# a lock\n")
    found = Pushed(pin, {recipe.REVISION_LABEL: REVISION, recipe.PIN_LABEL: pin.name})
    image = docker.LocalImage("sha256:" + "4" * 64, 1, found.labels, (), {})
    for module, name, value in (
        (push, "clean_revision", REVISION),
        (push, "Registry", found),
        (api, "ensure", SimpleNamespace(endpoint="")),
        (build, "build", build.Image(pin.image, image.id, 1, False, 0.0)),
        (docker, "find_image", None),
        (docker, "read_image", image),
        (inspect, "content_sha256", "5" * 64),
        (inspect, "inventory", FOUND),
        (inspect, "doctor", []),
        (inspect, "mismatch", None),
        (status, "is_tested", True),
        (sign, "check_key", None),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(sign, "sign", found.sign)
    return found


def test_the_provenance_has_every_lock_of_the_image(pushed: Pushed, tmp_path: Path) -> None:
    push.run("registry.example/stack", pushed.pin, False, str(tmp_path), "my.key")
    (predicate,) = pushed.predicates
    paths = (locks.path_of(pushed.pin), locks.build_path_of(pushed.pin), locks.added_path_of(pushed.pin))
    dependencies = predicate["buildDefinition"]["resolvedDependencies"]
    assert {entry["name"]: entry["digest"] for entry in dependencies if "uri" not in entry} == {
        name: {"sha256": sha256_of(path)}
        for name, path in zip(("wheels' lock", "build wheels' lock", "added wheels' lock"), paths, strict=True)
    }


def test_an_empty_key_is_checked_as_any_other(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign, "check_key", Mock(side_effect=UsageError("--sign is ''")))
    with pytest.raises(UsageError, match="--sign is ''"):
        push.run("registry.example/stack", pushed.pin, False, str(tmp_path), "")
    assert pushed.tags == []


def test_a_row_on_an_unsupported_debian_is_signed_only_on_request(pushed: Pushed, tmp_path: Path) -> None:
    old = replace(pushed.pin, debian=DEBIAN_RELEASES[11])
    with pytest.raises(
        UsageError, match=r"Debian 11 has had no security updates .*; to sign .* add --unsupported"
    ):
        push.run("registry.example/stack", old, False, str(tmp_path), "my.key")
    assert pushed.tags == []
    push.run("registry.example/stack", old, False, str(tmp_path), "my.key", unsupported=True)
    assert pushed.tags


def test_a_tree_that_changes_before_the_build_is_not_pushed(pushed: Pushed, tmp_path: Path) -> None:
    pushed.labels[recipe.REVISION_LABEL] += recipe.DIRTY
    with pytest.raises(
        UsageError, match=f"was built from {REVISION}-dirty, expected {REVISION}: the tree changed"
    ):
        push.run("registry.example/stack", pushed.pin, False, str(tmp_path))
    assert pushed.tags == []


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


COSIGN = """#!/bin/sh
[ "$1" = sign-blob ] && [ "$COSIGN_PASSWORD" = secret ] && exit 0
[ "${COSIGN_PASSWORD+x}" ] || { echo "Error: reading key: inappropriate ioctl for device" >&2; exit 1; }
echo "Error: reading key: decrypt: encrypted: decryption failed" >&2
exit 1
"""


def test_a_key_that_cannot_sign_is_reported_before_the_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cosign, key = tmp_path / "cosign", tmp_path / "my.key"
    cosign.write_text(COSIGN)
    cosign.chmod(0o755)
    key.write_text("key")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("KEY", "key")
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.setenv(sign.PASSWORD, "secret")
    sign.check_key(str(key))
    sign.check_key("env://KEY")
    with pytest.raises(UsageError, match="the variable UNSET is not set"):
        sign.check_key("env://UNSET")
    with pytest.raises(UsageError, match="expected a file of cosign generate-key-pair"):
        sign.check_key(str(tmp_path / "none.key"))
    monkeypatch.setenv(sign.PASSWORD, "wrong")
    with pytest.raises(UsageError, match=f"--sign .*/my.key: .* password is wrong: set {sign.PASSWORD}"):
        sign.check_key(str(key))
    monkeypatch.delenv(sign.PASSWORD)
    with pytest.raises(UsageError, match=f"the key has a password: set {sign.PASSWORD}"):
        sign.check_key(str(key))


def test_the_folder_for_the_files_must_be_writable(tmp_path: Path) -> None:
    push.check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="expected an existing folder"):
        push.check_folder(tmp_path / "none")
    with pytest.raises(UsageError, match="expected a folder that is writable"):
        push.check_folder(Path("/proc"))
