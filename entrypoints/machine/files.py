"""Files of /proc, /sys and the control groups, which a container may hide. Torch-free."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """The text of a file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
