"""Tensors that autograd does not keep for the products that read them: the backward pass computes them again.

For results that one pass computes from tensors that autograd keeps in any case. Where something else uses torch's
hooks for saved tensors, as activation checkpointing does, it alone decides what is kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from torch.autograd.graph import saved_tensors_hooks

from cpu_train_stack.operators.transforms import is_compiling

_TORCH = torch._C._autograd
_ATTRIBUTE = "_computed_again_by"


class _Version:
    """A tensor as it is now. Like autograd, it raises RuntimeError if the tensor has changed when it is used."""

    def __init__(self, tensor: Any) -> None:
        # Not the tensor itself: a result that its own node saves would never be freed.
        self._tensor = tensor.detach()
        self._version = tensor._version

    def unchanged(self) -> Any:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a tensor of shape {list(self._tensor.shape)} is at version {self._tensor._version}, expected "
                f"version {self._version}"
            )
        return self._tensor


class _Again:
    """A tensor that is computed when the backward pass first needs it. The products that read it share it."""

    def __init__(self, compute: Callable[..., Any], inputs: Sequence[_Version]) -> None:
        self._compute, self._inputs = compute, inputs
        self._value: Any = None

    def value(self) -> Any:
        if self._value is None:
            with torch.no_grad():
                self._value = self._compute(*(tensor.unchanged() for tensor in self._inputs))
        return self._value


class _Active(threading.local):
    """The tensors that are not kept at present, with their versions."""

    def __init__(self) -> None:
        self.tensors: list[tuple[Any, int, _Again]] = []


_ACTIVE = _Active()


def computable_again(tensor: Any, compute: Callable[..., Any], *inputs: Any) -> Any:
    """The tensor. `compute` returns it again, with the same bits, from these tensors without their gradients."""
    if is_compiling():
        return tensor  # the compiler decides what is kept
    if tensor.requires_grad and torch.is_grad_enabled():
        setattr(tensor, _ATTRIBUTE, (tensor._version, compute, [_Version(each) for each in inputs]))
    return tensor


def not_kept(tensor: Any) -> contextlib.AbstractContextManager[None]:
    """Autograd keeps no memory of this tensor inside the block, if it is `computable_again`."""
    return contextlib.nullcontext() if is_compiling() else _not_kept(tensor)


@contextlib.contextmanager
def _not_kept(tensor: Any) -> Iterator[None]:
    version, *recipe = getattr(tensor, _ATTRIBUTE, (None,))
    if version is None or not torch.is_grad_enabled() or tensor._version != version:
        yield
        return
    decides = not _ACTIVE.tensors and _is_free()
    _ACTIVE.tensors.append((tensor, version, _Again(*recipe)))
    try:
        with saved_tensors_hooks(_pack, _unpack) if decides else contextlib.nullcontext():
            yield
    finally:
        _ACTIVE.tensors.pop()


def is_kept(saved: Any) -> bool:
    """Whether autograd keeps a tensor that it is about to save, unless other hooks decide that."""
    return _again(saved) is None


def _is_free() -> bool:
    """Whether nothing else decides what is kept. False if this torch has no function to find that out."""
    top = getattr(_TORCH, "_top_saved_tensors_default_hooks", None)
    return top is not None and _TORCH._saved_tensors_hooks_is_enabled() and top(False) is None


def _again(saved: Any) -> _Again | None:
    for tensor, version, again in _ACTIVE.tensors:
        is_same = saved.data_ptr() == tensor.data_ptr() and saved.numel() == tensor.numel()
        if is_same and saved.dtype is tensor.dtype and saved.is_contiguous() and tensor._version == version:
            return again
    return None


def _pack(saved: Any) -> Any:
    again = _again(saved)
    return _Version(saved) if again is None else (again, saved.shape)


def _unpack(packed: Any) -> Any:
    if isinstance(packed, _Version):
        return packed.unchanged()
    again, shape = packed
    return again.value().view(shape)
