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
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from cpu_train_stack.operators import library
from cpu_train_stack.operators.dropout import Rule
from cpu_train_stack.operators.numbers import Numbers, numbers
from cpu_train_stack.operators.recomputation import computable_again
from cpu_train_stack.operators.transforms import by_formula, like, or_by_formula

# As in kernels/encoder.cpp.
_LANES, _GROUP, _MOST = 16, 32, 8
_NARROW = torch.bfloat16


class _Rule(ctypes.Structure):
    _fields_ = [("seed", ctypes.c_uint64), ("threshold", ctypes.c_uint32), ("scale", ctypes.c_float)]


class _Sum(ctypes.Structure):
    """As in kernels/encoder.cpp, like the structures below."""

    _fields_ = [
        ("added", Numbers),
        *(
            (name, ctypes.c_void_p)
            for name in ("stream", "weight", "bias", "centred", "inverses", "out", "narrow", "kept")
        ),
        ("rows", ctypes.c_size_t),
        ("features", ctypes.c_size_t),
        ("rule", _Rule),
        ("epsilon", ctypes.c_float),
    ]


class _SumGradients(ctypes.Structure):
    _fields_ = [
        ("out", ctypes.c_void_p),
        ("added", Numbers),
        *((name, ctypes.c_void_p) for name in ("stream", "weight", "bias")),
    ]


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
    has_copy = dtype is _NARROW and not torch.is_inference_mode_enabled()
    out, narrow, centred, _inverses = _NormedSum.apply(
        added, stream, norm.weight, norm.bias, rule, norm.eps, has_copy
    )
    if narrow is not None:
        again = _narrow, centred.detach(), norm.weight, norm.bias
        _KEPT.put(out, _Next(out._version, narrow=narrow, again=again))
    return out


def branches(stream: Any, count: int) -> tuple[Any, ...]:
    """`count` tensors with the same bfloat16 copy of a float32 stream, one for each product that reads it.

    In the backward pass, the gradients of all of them, and of what `branch_of` returns, are summed in float32.
    """
    kept = None if stream.is_inference() else _KEPT.pop(stream)
    branch, *copies = _Branches.apply(stream, None if kept is None else kept.narrow, count)
    if kept is not None and kept.again:
        copies = [computable_again(copy, *kept.again) for copy in copies]
    if not stream.is_inference():
        _KEPT.put(stream, _Next(stream._version, branch=branch))
    return tuple(copies)


def branch_of(stream: Any) -> Any:
    """The stream, as a result of the last `branches` of it if there was one: its gradient is summed with them."""
    kept = None if stream.is_inference() else _KEPT.pop(stream)
    if kept is None or kept.branch is None:
        return stream
    has_gradient = stream.requires_grad and torch.is_grad_enabled()
    return kept.branch if kept.branch.requires_grad is has_gradient else stream


def gelu(states: Any) -> Any:
    """GELU of a bfloat16 tensor."""
    states = states.contiguous()
    return computable_again(_Gelu.apply(states), _gelu, states)


def _sum_formula(ctx: Any) -> Any:
    """`centred` and `inverses` are results of the function, so that their graph leads to the inputs of the sum."""
    centred, weight, inverses, kept = ctx.saved_tensors
    features = weight.numel()
    bits = (kept[..., None].int() >> torch.arange(_LANES, device="cpu")) & 1
    factors = bits.flatten(1)[:, :features].view_as(centred) * ctx.rule.scale

    def normed_sum(added: Any, stream: Any, weight: Any, bias: Any) -> Any:
        summed = added.float() * factors + stream
        values = centred / inverses[..., None] + summed - summed.mean(-1, keepdim=True)
        again = (values.square().mean(-1) + ctx.epsilon).rsqrt()
        normed = values * again[..., None]
        return normed * weight + bias, None, normed, again

    return normed_sum, (like(centred, ctx.dtype), like(centred), weight, like(weight))


class _NormedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, added: Any, stream: Any, weight: Any, bias: Any, rule: Any, epsilon: float, has_copy: bool
    ) -> Any:
        features = stream.shape[-1]
        weight, bias = weight.contiguous(), bias.contiguous()
        centred, out = torch.empty_like(stream), torch.empty_like(stream)
        narrow = torch.empty_like(stream, dtype=_NARROW) if has_copy else None
        inverses = torch.empty(stream.shape[:-1], dtype=torch.float32, device="cpu")
        kept = torch.empty(inverses.numel(), -(-features // _LANES), dtype=torch.int16, device="cpu")
        described = _Sum(
            numbers(added),
            *map(_pointer, (stream, weight, bias, centred, inverses, out, narrow, kept)),
            stream.numel() // features,
            features,
            _Rule(rule.seed, rule.threshold, rule.scale) if rule else _Rule(0, 0, 1.0),
            epsilon,
        )
        library.library().sum_forward(ctypes.byref(described))
        ctx.save_for_backward(centred, weight, inverses, kept)
        ctx.rule, ctx.dtype = described.rule, added.dtype
        ctx.set_materialize_grads(False)
        ctx.epsilon = epsilon
        if narrow is not None:
            ctx.mark_non_differentiable(narrow)
        return out, narrow, centred, inverses

    @staticmethod
    @or_by_formula(_sum_formula)
    def backward(ctx: Any, by_out: Any, by_narrow: Any, *by_others: Any) -> Any:
        if any(each is not None for each in by_others):  # of a second derivative
            return by_formula(ctx, _sum_formula, (by_out, by_narrow, *by_others))
        if by_out is None:
            return (None,) * 7
        centred, weight, inverses, kept = ctx.saved_tensors
        features, rows = weight.numel(), inverses.numel()
        needs_added, needs_stream, needs_weight, needs_bias = ctx.needs_input_grad[:4]
        by_out = by_out.contiguous()
        by_added = torch.empty_like(centred, dtype=ctx.dtype) if needs_added else None
        by_stream = torch.empty_like(centred) if needs_stream else None
        sums = None
        if needs_weight or needs_bias:
            sums = torch.zeros(2, -(-rows // _GROUP), features, dtype=torch.float32, device="cpu")
        described = _Sum(
            Numbers(),
            *map(_pointer, (None, weight, None, centred, inverses, None, None, kept)),
            rows,
            features,
            ctx.rule,
            0.0,
        )
        gradients = _SumGradients(
            by_out.data_ptr(),
            numbers(by_added),
            *map(_pointer, (by_stream, *(sums if sums is not None else (None, None)))),
        )
        library.library().sum_backward(ctypes.byref(described), ctypes.byref(gradients))
        by_weight, by_bias = (None, None) if sums is None else sums.sum(1)
        return by_added, by_stream, by_weight, by_bias, None, None, None


def _branches_formula(ctx: Any) -> Any:
    def branches(stream: Any) -> Any:
        return (stream, *[stream.to(_NARROW)] * ctx.count)

    return branches, (torch.zeros(ctx.shape, dtype=torch.float32, device="cpu", requires_grad=True),)


class _Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Any, narrow: Any, count: int) -> Any:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.count = stream.shape, count
        narrow = stream.to(_NARROW) if narrow is None else narrow
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


def _gelu_formula(ctx: Any) -> Any:
    return lambda states: functional.gelu(states.float()).to(_NARROW), ctx.saved_tensors


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Any) -> Any:
        ctx.save_for_backward(states)
        return _gelu(states)

    @staticmethod
    @or_by_formula(_gelu_formula)
    def backward(ctx: Any, outer: Any) -> Any:
        (states,) = ctx.saved_tensors
        outer, found = outer.contiguous(), torch.empty_like(states)
        library.library().gelu_backward(states.data_ptr(), outer.data_ptr(), found.data_ptr(), states.numel())
        return found


def _gelu(states: Any) -> Any:
    out = torch.empty_like(states)
    library.library().gelu_forward(states.data_ptr(), out.data_ptr(), states.numel())
    return out


def _narrow(centred: Any, weight: Any, bias: Any) -> Any:
    """The bfloat16 copy of a normed sum, as the forward pass wrote it."""
    weight, bias = weight.contiguous(), bias.contiguous()
    out, features = torch.empty_like(centred, dtype=_NARROW), weight.numel()
    pointers = map(_pointer, (None, weight, bias, centred, None, None, out, None))
    described = _Sum(Numbers(), *pointers, centred.numel() // features, features, _Rule(0, 0, 1.0), 0.0)
    library.library().sum_narrow(ctypes.byref(described))
    return out


def _pointer(tensor: Any) -> Any:
    return None if tensor is None else tensor.data_ptr()
