"""The commit under which an image is pushed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tooling.basis.errors import UsageError
from tooling.image import push, recipe


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
