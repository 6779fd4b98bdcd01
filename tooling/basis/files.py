"""Hashes of files, and atomic writes."""

from __future__ import annotations

import os
from hashlib import file_digest
from pathlib import Path


def sha256_of(path: Path) -> str:
    """The hex sha256 of a file."""
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Replaces a file atomically: readers see the old text or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")  # two processes may write at the same time
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
