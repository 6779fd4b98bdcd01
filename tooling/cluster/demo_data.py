"""The demo's data: docstrings of Python's standard library, each labelled with its module.

Every machine has this real text. The sources are parsed, not imported. The modules with the most docstrings are
used, so that the task is similar with every version of Python.
"""

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
# Tests, vendored code, editors and tools.
SKIPPED = ("test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "ensurepip", "__pycache__")


@dataclass(frozen=True)
class DemoRow:
    """An example. `text`: a docstring, on one line. `label`: the name of the top-level module."""

    text: str
    label: str

    @property
    def digest(self) -> str:
        """A key to sort rows in the same order everywhere, independent of their source."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def write(folder: Path, stdlib: Path | None = None) -> tuple[Path, Path]:
    """Write train.csv and test.csv (columns text, label), and return their paths."""
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


def balanced(rows: list[DemoRow]) -> list[DemoRow]:
    """At most PER_LABEL rows of each of the LABELS modules with the most docstrings, in a fixed mixed order."""
    by_label: dict[str, list[DemoRow]] = {}
    for row in sorted(set(rows), key=lambda row: row.digest):
        by_label.setdefault(row.label, []).append(row)
    largest = sorted(by_label.items(), key=lambda item: (-len(item[1]), item[0]))[:LABELS]
    chosen = [row for _, part in largest for row in part[:PER_LABEL]]
    return sorted(chosen, key=lambda row: row.digest)


def docstrings(stdlib: Path) -> Iterator[DemoRow]:
    """The docstrings of the library that have at least MIN_CHARACTERS."""
    for path in sorted(stdlib.rglob("*.py")):
        parts = path.relative_to(stdlib).parts
        if any(part in SKIPPED for part in parts):
            continue
        label = parts[0].removesuffix(".py").lstrip("_")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):  # files that are broken on purpose
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split())
                if len(text) >= MIN_CHARACTERS:
                    yield DemoRow(text[:MAX_CHARACTERS], label)
