"""What attention passes to torch's own function."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.operators import attention


@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.5}, {"enable_gqa": True}], ids=["none", "scale", "enable_gqa"]
)
def test_torch_gets_only_the_arguments_that_were_given(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """torch 2.0 has neither scale nor enable_gqa."""
    passed: list[dict[str, Any]] = []

    def torchs(*_tensors: object, **others: Any) -> None:
        passed.append(others)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(jit=SimpleNamespace(is_tracing=lambda: False)))
    monkeypatch.setattr(attention, "are_plain", lambda *_tensors: False)
    ours = attention.replaced(torchs, attention.KernelChoice({}))
    ours(1, 2, 3, **options)
    assert passed == [options]
