"""The demo's data: docstrings of Python's standard library, labelled by the module that they come from.

Real text that every machine has. The sources are parsed, not imported; which modules take part is decided by how
many docstrings they have, so that the task is much the same on every Python.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LABELS = 8
PER_LABEL = 240
TEST_SHARE = 5  # one row in five
MIN_CHARACTERS = 40
MAX_CHARACTERS = 400
# Not documentation of the library: its own tests, vendored code, editors and tools.
SKIPPED = ("test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "ensurepip", "__pycache__")


@dataclass(frozen=True)
class Row:
    """One example: `text` is a docstring on one line, `label` the top-level module's name."""

    text: str
    label: str

    @property
    def digest(self) -> str:
        """Orders rows in a way that is the same everywhere and has nothing to do with their source."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def write(folder: Path, stdlib: Path | None = None) -> tuple[Path, Path]:
    """Writes train.csv and test.csv (columns text, label) and returns their paths."""
    rows = balanced(list(docstrings(stdlib or Path(sysconfig.get_path("stdlib")))))
    test = [row for number, row in enumerate(rows) if number % TEST_SHARE == 0]
    train = [row for number, row in enumerate(rows) if number % TEST_SHARE != 0]
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.csv", folder / "test.csv"
    for path, part in zip(paths, (train, test), strict=True):
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("text", "label"))
            writer.writerows((row.text, row.label) for row in part)
    return paths


def balanced(rows: list[Row]) -> list[Row]:
    """The LABELS modules with the most docstrings, at most PER_LABEL rows each, in a shuffled fixed order."""
    by_label: dict[str, list[Row]] = {}
    for row in sorted(set(rows), key=lambda row: row.digest):
        by_label.setdefault(row.label, []).append(row)
    largest = sorted(by_label.items(), key=lambda item: (-len(item[1]), item[0]))[:LABELS]
    chosen = [row for _, part in largest for row in part[:PER_LABEL]]
    return sorted(chosen, key=lambda row: row.digest)


def docstrings(stdlib: Path) -> Iterator[Row]:
    """Every docstring of the library that is long enough to say something."""
    for path in sorted(stdlib.rglob("*.py")):
        parts = path.relative_to(stdlib).parts
        if any(part in SKIPPED for part in parts):
            continue
        label = parts[0].removesuffix(".py").lstrip("_")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):  # files that are kept broken on purpose
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split())
                if len(text) >= MIN_CHARACTERS:
                    yield Row(text[:MAX_CHARACTERS], label)
