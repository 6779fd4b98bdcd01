"""Modules of entrypoints/cpu_train_stack/bench, with stand-ins for torch and for the modules that import it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import cpu_train_stack.bench


def load(monkeypatch: pytest.MonkeyPatch, name: str, **stand_ins: Any) -> Any:
    """A copy of bench.NAME. `stand_ins`: modules by name, with _ for dots; otherwise a MagicMock."""
    torch = MagicMock()
    torch.nn.Module = object
    modules = {
        "torch": torch,
        "torch.distributed": torch.distributed,
        "torch.nn": torch.nn,
        "torch.nn.parallel": torch.nn.parallel,
        "cpu_train_stack.bench.output": MagicMock(),
        "cpu_train_stack.bench.phases": MagicMock(),
        "cpu_train_stack.group.create": MagicMock(),
    }
    for module, default in modules.items():
        monkeypatch.setitem(sys.modules, module, stand_ins.get(module.replace(".", "_"), default))
    if "torch_distributed" in stand_ins:
        torch.distributed = stand_ins["torch_distributed"]
    path = Path(cpu_train_stack.bench.__file__).parent / f"{name}.py"
    spec: Any = importlib.util.spec_from_file_location(f"{name}_without_torch", path)
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, loaded)
    spec.loader.exec_module(loaded)
    return loaded
