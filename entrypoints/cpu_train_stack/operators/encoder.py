"""The parts of an encoder's layer between its matrix products, each in one pass (kernels/encoder.cpp).

Everything is computed in float32, and each result is rounded once to its dtype.

Under autocast, the products read the residual stream in bfloat16. A sum writes this copy too, and it is kept for
the products that read the stream next. A stream that has changed since is cast again.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from cpu_train_stack.operators import library
from cpu_train_stack.operators.dropout import Rule
from cpu_train_stack.operators.encoder_operators import GELU, NARROW, SUM, gelu_of, narrow_of
from cpu_train_stack.operators.numbers import Numbers, numbers
from cpu_train_stack.operators.recomputation import computable_again
from cpu_train_stack.operators.transforms import is_compiling, or_by_formula

_MOST = 8  # as in kernels/encoder.cpp


class _Total(ctypes.Structure):
    _fields_ = [("parts", Numbers * _MOST), ("count", ctypes.c_size_t), ("out", ctypes.c_void_p)]


@dataclass
class _Next:
    """For what reads a stream next. `version`: the stream's at that time. `branch`: see `branches`.

    `again`: a function and the tensors from which it computes `narrow` again.
    """

    version: int
    narrow: Any = None
    again: tuple[Any, ...] = ()
    branch: Any = None


class _Kept(threading.local):
    """What each thread kept last, for one stream. It is freed with the stream."""

    def __init__(self) -> None:
        self.by_stream = WeakTensorKeyDictionary()

    def put(self, stream: Any, following: _Next) -> None:
        self.by_stream.clear()
        self.by_stream[stream] = following

    def pop(self, stream: Any) -> _Next | None:
        kept: _Next | None = self.by_stream.pop(stream, None)
        return kept if kept is not None and kept.version == stream._version else None


_KEPT = _Kept()


def normed_sum(added: Any, stream: Any, rule: Rule | None, norm: Any, dtype: Any) -> Any:
    """LayerNorm of the sum of a stream and what is added to it after dropout: float32, the new stream.

    `added`: [..., features], float32 or bfloat16; `stream`: the same shape, float32; both contiguous. `norm`: a
    LayerNorm of one dimension, in float32. `dtype`: of the products that read the stream.
    """
    has_copy = dtype is NARROW and not is_compiling() and not torch.is_inference_mode_enabled()
    seed, threshold = (rule.seed, rule.threshold) if rule else (None, 0)
    out, narrow, centred, *_ = SUM(added, stream, norm.weight, norm.bias, seed, threshold, norm.eps, has_copy)
    if has_copy:
        again = narrow_of, centred.detach(), norm.weight, norm.bias
        _KEPT.put(out, _Next(out._version, narrow=narrow, again=again))
    return out


def branches(stream: Any, count: int) -> tuple[Any, ...]:
    """`count` tensors with the same bfloat16 copy of a float32 stream, one for each product that reads it.

    In the backward pass, the gradients of all of them, and of what `branch_of` returns, are summed in float32.
    """
    if is_compiling():  # which makes one copy of these
        return tuple(stream.to(NARROW) for _ in range(count))
    kept = None if stream.is_inference() else _KEPT.pop(stream)
    branch, *copies = _Branches.apply(stream, None if kept is None else kept.narrow, count)
    if kept is not None and kept.again:
        copies = [computable_again(copy, *kept.again) for copy in copies]
    if not stream.is_inference():
        _KEPT.put(stream, _Next(stream._version, branch=branch))
    return tuple(copies)


def branch_of(stream: Any) -> Any:
    """The stream, as a result of the last `branches` of it if there was one: its gradient is summed with them."""
    kept = None if is_compiling() or stream.is_inference() else _KEPT.pop(stream)
    if kept is None or kept.branch is None:
        return stream
    has_gradient = stream.requires_grad and torch.is_grad_enabled()
    return kept.branch if kept.branch.requires_grad is has_gradient else stream


def gelu(states: Any) -> Any:
    """GELU of a bfloat16 tensor."""
    states = states.contiguous()
    return computable_again(GELU(states), gelu_of, states)


def _branches_formula(ctx: Any) -> Any:
    def branches(stream: Any) -> Any:
        return (stream, *[stream.to(NARROW)] * ctx.count)

    return branches, (torch.zeros(ctx.shape, dtype=torch.float32, device="cpu", requires_grad=True),)


class _Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Any, narrow: Any, count: int) -> Any:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.count = stream.shape, count
        narrow = stream.to(NARROW) if narrow is None else narrow
        return (stream.detach(), *(narrow.detach() for _ in range(count)))

    @staticmethod
    @or_by_formula(_branches_formula)
    def backward(_ctx: Any, *gradients: Any) -> Any:
        found = [each.contiguous() for each in gradients if each is not None]
        if not found:
            return None, None, None
        out = torch.empty_like(found[0], dtype=torch.float32)
        parts = (Numbers * _MOST)(*map(numbers, found))
        total = _Total(parts, len(found), out.data_ptr())
        library.library().total_of(ctypes.byref(total), out.numel())
        return out, None, None
