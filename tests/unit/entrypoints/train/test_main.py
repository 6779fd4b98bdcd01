from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from cpu_train_stack.train.main import hidden, imports_on_demand


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
