"""The operators of encoders (kernels/encoder.cpp): dropout, a sum and LayerNorm; GELU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.nn import functional

from cpu_train_stack.operators import library
from cpu_train_stack.operators.dropout import Described, described, scale_of
from cpu_train_stack.operators.numbers import Numbers, numbers
from cpu_train_stack.operators.registration import Operator, has_memory
from cpu_train_stack.operators.transforms import by_formula, like, or_by_formula

# As in kernels/encoder.cpp.
_LANES, _GROUP = 16, 32
NARROW = torch.bfloat16


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
        ("rule", Described),
        ("epsilon", ctypes.c_float),
    ]


class _SumGradients(ctypes.Structure):
    _fields_ = [
        ("out", ctypes.c_void_p),
        ("added", Numbers),
        *((name, ctypes.c_void_p) for name in ("stream", "weight", "bias")),
    ]


def _sum(
    added: Any, stream: Any, weight: Any, bias: Any, seed: Any, threshold: int, epsilon: float, has_copy: bool
) -> Any:
    """The normed sum, its bfloat16 copy, and what the backward pass needs. `seed`: an integer or a tensor."""
    features = stream.shape[-1]
    weight, bias = weight.contiguous(), bias.contiguous()
    centred, out = torch.empty_like(stream), torch.empty_like(stream)
    narrow = torch.empty_like(stream, dtype=NARROW) if has_copy else None
    inverses = torch.empty(stream.shape[:-1], dtype=torch.float32, device="cpu")
    kept = torch.empty(inverses.numel(), -(-features // _LANES), dtype=torch.int16, device="cpu")
    if has_memory(stream):
        call = _Sum(
            numbers(added),
            *map(_pointer, (stream, weight, bias, centred, inverses, out, narrow, kept)),
            stream.numel() // features,
            features,
            described(seed, threshold),
            epsilon,
        )
        library.library().sum_forward(ctypes.byref(call))
    return out, narrow, centred, inverses, kept


def _save_sum(ctx: Any, inputs: Any, output: Any) -> None:
    added, _stream, weight, _bias, _seed, threshold, epsilon, _has_copy = inputs
    _out, narrow, centred, inverses, kept = output
    ctx.save_for_backward(centred, weight, inverses, kept)
    ctx.added_dtype, ctx.threshold, ctx.epsilon = added.dtype, threshold, epsilon
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept, *(() if narrow is None else (narrow,)))


def _sum_formula(ctx: Any) -> Any:
    """`centred` and `inverses` are results of the function, so that their graph leads to the inputs of the sum."""
    centred, weight, inverses, kept = ctx.saved_tensors
    features = weight.numel()
    bits = (kept[..., None].int() >> torch.arange(_LANES, device="cpu")) & 1
    factors = bits.flatten(1)[:, :features].view_as(centred) * scale_of(ctx.threshold)

    def normed_sum(added: Any, stream: Any, weight: Any, bias: Any) -> Any:
        summed = added.float() * factors + stream
        values = centred / inverses[..., None] + summed - summed.mean(-1, keepdim=True)
        again = (values.square().mean(-1) + ctx.epsilon).rsqrt()
        normed = values * again[..., None]
        return normed * weight + bias, None, normed, again

    return normed_sum, (like(centred, ctx.added_dtype), like(centred), weight, like(weight))


@or_by_formula(_sum_formula)
def _sum_backward(ctx: Any, by_out: Any, by_narrow: Any, by_centred: Any, by_inverses: Any, _by_kept: None) -> Any:
    if by_centred is not None or by_inverses is not None:  # of a second derivative
        return by_formula(ctx, _sum_formula, (by_out, by_narrow, by_centred, by_inverses))
    if by_out is None:
        return (None,) * 8
    needs = list(ctx.needs_input_grad[:4])
    *found, sums = SUM_GRADIENTS(by_out, *ctx.saved_tensors, ctx.threshold, ctx.added_dtype, needs)
    found += (None, None) if sums is None or not sums.numel() else sums.unbind()
    return (*(gradient if wanted else None for gradient, wanted in zip(found, needs)), *[None] * 4)


def _sum_gradients(
    by_out: Any,
    centred: Any,
    weight: Any,
    inverses: Any,
    kept: Any,
    threshold: int,
    added_dtype: Any,
    needs: list[bool],
) -> Any:
    """By what is added, the stream, and the weight and the bias in one tensor. `needs`: which of them."""
    features, rows = weight.numel(), inverses.numel()
    by_out = by_out.contiguous()
    by_added = torch.empty_like(centred, dtype=added_dtype) if needs[0] else None
    by_stream = torch.empty_like(centred) if needs[1] else None
    sums = None
    if needs[2] or needs[3]:
        sums = torch.zeros(2, -(-rows // _GROUP), features, dtype=torch.float32, device="cpu")
    if has_memory(by_out):
        call = _Sum(
            Numbers(),
            *map(_pointer, (None, weight.contiguous(), None, centred, inverses, None, None, kept)),
            rows,
            features,
            described(None, threshold),
            0.0,
        )
        gradients = _SumGradients(
            by_out.data_ptr(),
            numbers(by_added),
            *map(_pointer, (by_stream, *(sums if sums is not None else (None, None)))),
        )
        library.library().sum_backward(ctypes.byref(call), ctypes.byref(gradients))
    return by_added, by_stream, None if sums is None else sums.sum(1)


def _save_gelu(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
    ctx.save_for_backward(*inputs)


def _gelu_formula(ctx: Any) -> Any:
    return lambda states: functional.gelu(states.float()).to(NARROW), ctx.saved_tensors


@or_by_formula(_gelu_formula)
def _gelu_backward(ctx: Any, outer: Any) -> Any:
    return GELU_GRADIENT(outer, *ctx.saved_tensors)


def _gelu_gradient(outer: Any, states: Any) -> Any:
    outer, found = outer.contiguous(), torch.empty_like(states)
    if has_memory(outer):
        library.library().gelu_backward(states.data_ptr(), outer.data_ptr(), found.data_ptr(), states.numel())
    return found


def gelu_of(states: Any) -> Any:
    out = torch.empty_like(states)
    if has_memory(states):
        library.library().gelu_forward(states.data_ptr(), out.data_ptr(), states.numel())
    return out


def narrow_of(centred: Any, weight: Any, bias: Any) -> Any:
    """The bfloat16 copy of a normed sum, as the forward pass wrote it."""
    weight, bias = weight.contiguous(), bias.contiguous()
    out, features = torch.empty_like(centred, dtype=NARROW), weight.numel()
    pointers = map(_pointer, (None, weight, bias, centred, None, None, out, None))
    call = _Sum(Numbers(), *pointers, centred.numel() // features, features, described(None, 0), 0.0)
    library.library().sum_narrow(ctypes.byref(call))
    return out


def _pointer(tensor: Any) -> Any:
    return None if tensor is None else tensor.data_ptr()


SUM = Operator(
    "normed_sum(Tensor added, Tensor stream, Tensor weight, Tensor bias, Tensor? seed, int threshold, "
    "float epsilon, bool has_copy) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    *(_sum, _save_sum, _sum_backward),
)
SUM_GRADIENTS = Operator(
    "normed_sum_gradients(Tensor by_out, Tensor centred, Tensor weight, Tensor inverses, Tensor kept, "
    "int threshold, ScalarType added_dtype, bool[] needs) -> (Tensor, Tensor, Tensor)",
    _sum_gradients,
)
GELU = Operator("gelu(Tensor states) -> Tensor", gelu_of, _save_gelu, _gelu_backward)
GELU_GRADIENT = Operator("gelu_gradient(Tensor outer, Tensor states) -> Tensor", _gelu_gradient)
