"""Which kernels of the image a process uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.operators import library

NAMES = (contract.ATTENTION_KERNEL, contract.DROPOUT_KERNEL)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, NAMES),
        ({"CPU_TRAIN_STACK_KERNELS": "torch"}, ()),
        ({"CPU_TRAIN_STACK_ATTENTION_KERNEL": "torch"}, (contract.DROPOUT_KERNEL,)),
        ({"CPU_TRAIN_STACK_DROPOUT_KERNEL": "torch"}, (contract.ATTENTION_KERNEL,)),
        ({"CPU_TRAIN_STACK_KERNELS": ""}, NAMES),
    ],
)
def test_a_variable_turns_off_its_kernels(
    variables: dict[str, str], wanted: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path)
    for name in (contract.KERNELS, *NAMES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tuple(name for name in NAMES if library.wanted(name)) == wanted


def test_without_the_library_no_kernel_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libkernels.so")
    assert not any(library.wanted(name) for name in NAMES)
