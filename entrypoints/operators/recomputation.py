"""Tensors that autograd does not keep for the products that read them: the backward pass computes them again.

For results that one pass computes from tensors that autograd keeps in any case. Where something else uses torch's
hooks for saved tensors, as activation checkpointing does, it alone decides what is kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.autograd.graph import saved_tensors_hooks

_TORCH = torch._C._autograd
_ATTRIBUTE = "_computed_again_by"


class _Again:
    """A tensor that is computed when the backward pass first needs it. The products that read it share it."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._value: Any = None

    def value(self) -> Any:
        if self._value is None:
            with torch.no_grad():
                self._value = self._compute()
        return self._value


class _Active(threading.local):
    """The tensors that are not kept at present."""

    def __init__(self) -> None:
        self.tensors: list[tuple[Any, _Again]] = []


_ACTIVE = _Active()


def computable_again(tensor: Any, compute: Callable[[], Any]) -> Any:
    """The tensor. `compute` returns it again, with the same bits, from tensors without a gradient."""
    if tensor.requires_grad and torch.is_grad_enabled():
        setattr(tensor, _ATTRIBUTE, (compute, tensor._version))
    return tensor


@contextlib.contextmanager
def not_kept(tensor: Any) -> Iterator[None]:
    """Autograd keeps no memory of this tensor inside the block, if it is `computable_again`."""
    compute, version = getattr(tensor, _ATTRIBUTE, (None, None))
    if compute is None or not torch.is_grad_enabled() or tensor._version != version:
        yield
        return
    decides = not _ACTIVE.tensors and _is_free()
    _ACTIVE.tensors.append((tensor, _Again(compute)))
    try:
        with saved_tensors_hooks(_pack, _unpack) if decides else contextlib.nullcontext():
            yield
    finally:
        _ACTIVE.tensors.pop()


def is_kept(saved: Any) -> bool:
    """Whether autograd keeps a tensor that it wants to save at this moment, if nothing else decides that."""
    return _again(saved) is None


def _is_free() -> bool:
    """Whether nothing else decides what is kept."""
    return _TORCH._saved_tensors_hooks_is_enabled() and _TORCH._top_saved_tensors_default_hooks(False) is None


def _again(saved: Any) -> _Again | None:
    for tensor, again in _ACTIVE.tensors:
        is_same = saved.data_ptr() == tensor.data_ptr() and saved.numel() == tensor.numel()
        if is_same and saved.dtype is tensor.dtype and saved.is_contiguous():
            return again
    return None


def _pack(saved: Any) -> Any:
    again = _again(saved)
    return saved if again is None else (again, saved.shape)


def _unpack(packed: Any) -> Any:
    if isinstance(packed, torch.Tensor):
        return packed
    again, shape = packed
    return again.value().view(shape)
