from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoints.cli import packages
from entrypoints.train.main import hidden, imports_on_demand

VERSION = packages.versions(["transformers"]).get("transformers")
# Prepares a job, then creates accelerate's data loader as two ranks would, and prints what was imported.
PREPARE = """
import sys, types
from entrypoints.train.main import prepare
prepare(["--model_name_or_path", "x", "--train_file", "x.csv", "--output_dir", sys.argv[1]])
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
prepare_data_loader(DataLoader([1, 2, 3, 4]), num_processes=2, process_index=0, put_on_device=False)
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


@pytest.mark.parametrize(("version", "expected"), [("4.57.6", False), ("5.0.0", True), (None, False)])
def test_only_releases_that_check_first_are_imported_without(
    monkeypatch: pytest.MonkeyPatch, version: str | None, expected: bool
) -> None:
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    assert imports_on_demand(version) is expected


def test_a_transformers_that_is_imported_already_may_need_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", sys)
    assert not imports_on_demand("5.0.0")


@pytest.mark.skipif(packages.release(VERSION) < (5,), reason="needs transformers 5: ./inv test --inside PIN")
def test_train_starts_without_packages_that_it_does_not_use(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["transformers.trainer"]
