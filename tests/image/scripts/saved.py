"""Saves a model beside the tokenizer of another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def save_with_tokenizer(model: Any, tokenizer: Path, folder: Path) -> None:
    """`tokenizer`: the folder with the tokenizer. Every user can read the saved files."""
    model.save_pretrained(folder)
    for path in (*tokenizer.glob("tok*"), *tokenizer.glob("vocab*")):
        shutil.copy(path, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
