"""Which results of the layers autograd keeps for the backward pass, for checks of encoders and decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cpu_train_stack.operators import recomputation


def check(operators: Any, forward: Callable[[], Any], parameters: list[Any], fewer: int) -> None:
    """`fewer`: of the tensors that `operators` can compute again, how many are not kept.

    The gradients have the same bits as if all were kept, as other hooks for saved tensors see them. Without a
    backward pass, nothing stays in memory.
    """
    loss, results, inputs = _seen(operators, forward, parameters)
    del loss
    assert inputs
    assert not _in_memory(results + inputs)
    found, kept = _gradients(operators, forward, parameters)
    with mock.patch.object(recomputation, "_is_free", return_value=False):
        expected, all_kept = _gradients(operators, forward, parameters)
    assert (kept, all_kept) == (all_kept - fewer, all_kept)
    assert all(map(torch.equal, found, expected))
    with torch.autograd.graph.save_on_cpu():
        hooked, kept = _gradients(operators, forward, parameters)
    assert kept == all_kept
    assert all(map(torch.equal, hooked, expected))


def _gradients(operators: Any, forward: Callable[[], Any], parameters: list[Any]) -> tuple[tuple[Any, ...], int]:
    """The gradients, and how many of the tensors are in memory after the forward pass."""
    loss, results, _ = _seen(operators, forward, parameters)
    kept = _in_memory(results)
    return torch.autograd.grad(loss, parameters), kept


def _seen(operators: Any, forward: Callable[[], Any], parameters: list[Any]) -> tuple[Any, list[Any], list[Any]]:
    """The loss, the memory of the tensors that can be computed again, and of those they are computed from."""
    results: dict[int, StorageWeakRef] = {}
    inputs: dict[int, StorageWeakRef] = {}
    weights = {weight.untyped_storage()._cdata for weight in parameters}

    def note(tensor: Any, memory: dict[int, StorageWeakRef]) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            memory[storage._cdata] = StorageWeakRef(storage)

    def seen(tensor: Any, *recipe: Any) -> Any:
        note(tensor, results)
        for each in recipe[1:]:
            if not isinstance(each, torch.nn.Parameter):
                note(each, inputs)
        return recomputation.computable_again(tensor, *recipe)

    torch.manual_seed(3)
    with mock.patch.object(operators, "computable_again", seen):
        loss = forward()
    return loss, list(results.values()), list(inputs.values())


def _in_memory(storages: list[Any]) -> int:
    return sum(not storage.expired() for storage in storages)
