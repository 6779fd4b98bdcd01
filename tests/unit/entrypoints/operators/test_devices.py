"""Where the operators create tensors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cpu_train_stack

OPERATORS = Path(cpu_train_stack.__file__).parent / "operators"
CREATE = {"arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros"}


@pytest.mark.parametrize("file", sorted(OPERATORS.glob("*.py")), ids=lambda file: file.stem)
def test_tensors_are_created_in_host_memory_whatever_the_default_device_is(file: Path) -> None:
    """The kernels get their addresses: memory of another device would end the process."""
    without_device = [
        f"{file.name}:{call.lineno}"
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func) in {f"torch.{name}" for name in CREATE}
        and "device" not in {keyword.arg for keyword in call.keywords}
    ]
    assert without_device == []
