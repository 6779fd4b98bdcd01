"""Which results of the layers autograd keeps for the backward pass, for checks of encoders and decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from entrypoints.operators import recomputation


def check(operators: Any, forward: Callable[[], Any], parameters: list[Any], fewer: int) -> None:
    """`fewer`: of the tensors that `operators` can compute again, how many are not kept.

    The gradients have the same bits as if all were kept, which other hooks for saved tensors see.
    """
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
    memory: dict[int, StorageWeakRef] = {}

    def seen(tensor: Any, compute: Callable[[], Any]) -> Any:
        storage = tensor.untyped_storage()
        memory[storage._cdata] = StorageWeakRef(storage)
        return recomputation.computable_again(tensor, compute)

    torch.manual_seed(3)
    with mock.patch.object(operators, "computable_again", seen):
        loss = forward()
    kept = sum(not each.expired() for each in memory.values())
    return torch.autograd.grad(loss, parameters), kept
