from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoints.cli import packages
from entrypoints.train.main import hidden

PREPARE = """
import sys
from entrypoints.train.main import prepare
prepare(["--model_name_or_path", "x", "--train_file", "x.csv", "--output_dir", sys.argv[1]])
print(*{"transformers.trainer", "datasets", "pandas", "scipy"} & {*sys.modules})
import datasets
"""


def test_hidden_packages_cannot_be_imported_inside_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("early_package", "late_package"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    early = importlib.import_module("early_package")
    with hidden(("early_package", "late_package")):
        assert importlib.import_module("early_package") is early
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("late_package")
    importlib.import_module("late_package")


@pytest.mark.skipif(not packages.versions(["transformers"]), reason="needs transformers: ./inv test --inside PIN")
def test_train_starts_without_packages_that_it_does_not_use(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["transformers.trainer"]
