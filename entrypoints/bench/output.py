"""Where a measurement's document goes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entrypoints.cli.errors import UsageError


def check_output(file: Path) -> None:
    """Before the measurement rather than after it. Raises UsageError where the file cannot be written."""
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"bench: --output {file}, expected a file in a folder that exists and may be written to")


def write(document: Mapping[str, Any], file: Path) -> None:
    """As a whole or not at all."""
    unfinished = file.with_name(file.name + ".part")
    unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(file)
