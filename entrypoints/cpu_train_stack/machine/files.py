"""Read files that a container may hide or another process removes, and replace files atomically. Torch-free."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def text(path: Path) -> str:
    """The text of a file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def written(path: Path) -> float:
    """When a file was written to last, in seconds since the epoch; 0 if it does not exist or is not accessible."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def write_atomic(path: Path, text: str) -> None:
    """Replace a file: readers see either the old text or the new text. On OSError, no draft is left."""
    # Processes on several nodes may write it, with equal process IDs.
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
