"""What is checked before an image is pushed: its commit, the key and the folder for the files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tooling.basis.errors import UsageError
from tooling.image import push, recipe, sign


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


def test_the_commit_of_another_checkout_around_the_folder_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--allow-empty", "-m", "x")
    (tmp_path / "inner").mkdir()
    monkeypatch.setattr(recipe, "ROOT", tmp_path / "inner")
    assert recipe.revision() == ("unknown", "unknown", "unknown")


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
