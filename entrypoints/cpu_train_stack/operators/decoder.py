"""The parts of a decoder's layer between its matrix products, each in one pass (kernels/decoder.cpp).

Tensors are float32 or bfloat16, and contiguous except where noted. Everything is computed in float32, and each
result is rounded once to its dtype.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.nn import functional

from cpu_train_stack.operators import library
from cpu_train_stack.operators.numbers import Numbers, numbers
from cpu_train_stack.operators.recomputation import computable_again
from cpu_train_stack.operators.registration import Operator, has_memory
from cpu_train_stack.operators.transforms import is_compiling, like, or_by_formula

# As in kernels/decoder.cpp.
_GROUP = 32


class _Norm(ctypes.Structure):
    """As in kernels/decoder.cpp, like the structures below."""

    _fields_ = [
        *((name, Numbers) for name in ("stream", "added", "sum", "weight", "out")),
        ("inverses", ctypes.c_void_p),
        ("rows", ctypes.c_size_t),
        ("features", ctypes.c_size_t),
        ("epsilon", ctypes.c_float),
    ]


class _NormGradients(ctypes.Structure):
    _fields_ = [
        *((name, Numbers) for name in ("sum", "out", "stream", "added")),
        ("weight", ctypes.c_void_p),
    ]


class _Rotation(ctypes.Structure):
    _fields_ = [
        *((name, Numbers) for name in ("input", "out", "cosines", "sines")),
        ("sizes", ctypes.c_size_t * 4),
        ("in_steps", ctypes.c_size_t * 3),
        ("out_steps", ctypes.c_size_t * 3),
        ("angle_step", ctypes.c_size_t),
        ("is_inverse", ctypes.c_uint32),
    ]


def norm(stream: Any, added: Any, weight: Any, epsilon: float, dtype: Any, again: bool = False) -> tuple[Any, Any]:
    """The sum of a stream and what is added to it (None: nothing), and RMSNorm of this sum in `dtype`.

    `stream`, `added`: [..., features]; the sum has the dtype of `stream`. `again`: whether the second result is
    computable again (operators.recomputation).
    """
    weight = weight.contiguous()
    total, out, _inverses = NORM(stream, added, weight, epsilon, dtype)
    total = total if total.numel() else stream
    if again:
        computable_again(out, lambda total, weight: _norm(total, None, weight, epsilon, dtype)[1], total, weight)
    return total, out


def gated(gate: Any, up: Any) -> Any:
    """silu(gate) * up, for tensors of the same shape and dtype."""
    gate, up = gate.contiguous(), up.contiguous()
    return computable_again(GATE(gate, up), _gate, gate, up)


def add(stream: Any, added: Any) -> Any:
    """stream + added in the dtype of `stream`, for tensors of the same shape."""
    return stream + added if is_compiling() else _Add.apply(stream, added)


def rotated(states: Any, cosines: Any, sines: Any, dtype: Any) -> Any:
    """Queries or keys [batch, heads, tokens, features] with rotary embeddings, in `dtype`.

    `cosines`, `sines`: [batch or 1, tokens, features]. The features of each token must be contiguous. In memory,
    the result has tokens before heads.
    """
    return ROTATION(states, cosines, sines, dtype)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Any, added: Any) -> Any:
        ctx.dtype = added.dtype
        out = torch.empty_like(stream, memory_format=torch.contiguous_format)
        _run(library.library().add_forward, (stream.contiguous(), added.contiguous(), out), out.numel())
        return out

    @staticmethod
    def backward(ctx: Any, outer: Any) -> Any:
        return outer, outer.to(ctx.dtype)


def _norm(stream: Any, added: Any, weight: Any, epsilon: float, dtype: Any) -> Any:
    """The sum, its RMSNorm, and the inverses of its roots of mean squares."""
    stream = stream.contiguous()
    total = stream if added is None else torch.empty_like(stream)
    out = torch.empty_like(stream, dtype=dtype)
    inverses = torch.empty(stream.shape[:-1], dtype=torch.float32, device="cpu")
    if has_memory(stream):
        added = None if added is None else added.contiguous()
        described = _described(stream, added, None if added is None else total, weight, out, inverses, epsilon)
        library.library().norm_forward(ctypes.byref(described))
    return total, out, inverses


def _save_norm(ctx: Any, inputs: Any, output: Any) -> None:
    stream, added, weight, epsilon, dtype = inputs
    total, _out, inverses = output
    ctx.save_for_backward(stream.contiguous() if added is None else total, weight, inverses)
    ctx.dtypes = stream.dtype, None if added is None else added.dtype
    ctx.epsilon, ctx.dtype = epsilon, dtype
    ctx.mark_non_differentiable(inverses)
    ctx.set_materialize_grads(False)


def _norm_formula(ctx: Any) -> Any:
    total, weight, _inverses = ctx.saved_tensors
    stream_dtype, added_dtype = ctx.dtypes

    def norm(stream: Any, added: Any, weight: Any) -> Any:
        summed = total.float() + stream.float() + (0 if added is None else added.float())
        inverses = (summed.square().mean(-1, keepdim=True) + ctx.epsilon).rsqrt()
        return summed.to(stream_dtype), (summed * inverses * weight.float()).to(ctx.dtype)

    return norm, (like(total), None if added_dtype is None else like(total, added_dtype), weight)


@or_by_formula(_norm_formula)
def _norm_backward(ctx: Any, by_sum: Any, by_out: Any, _by_inverses: Any) -> Any:
    total, weight, inverses = ctx.saved_tensors
    added_dtype = ctx.dtypes[1]
    if by_out is None:
        return by_sum, None if added_dtype is None else by_sum.to(added_dtype), None, None, None
    if added_dtype is None and by_sum is not None and not by_sum.numel():
        by_sum = None  # of the empty tensor in place of a stream that has no sum
    needs_weight = ctx.needs_input_grad[2]
    by_stream, by_added, by_weight = NORM_GRADIENTS(
        total, weight, inverses, by_sum, by_out, added_dtype, needs_weight
    )
    if added_dtype in (None, total.dtype):
        by_added = None if added_dtype is None else by_stream
    return by_stream, by_added, by_weight if needs_weight else None, None, None


def _norm_gradients(
    total: Any, weight: Any, inverses: Any, by_sum: Any, by_out: Any, added_dtype: Any, needs_weight: bool
) -> Any:
    """By the stream; by what is added, unless it has the same dtype; by the weight."""
    by_out, by_sum = by_out.contiguous(), None if by_sum is None else by_sum.contiguous()
    by_stream = torch.empty_like(total)
    is_other = added_dtype not in (None, total.dtype)
    by_added = torch.empty_like(total, dtype=added_dtype) if is_other else None
    by_weight = None
    if needs_weight:
        by_weight = torch.zeros(-(-inverses.numel() // _GROUP), weight.numel(), dtype=torch.float32, device="cpu")
    if has_memory(total):
        described = _described(total, None, None, weight, None, inverses, 0.0)
        gradients = _NormGradients(
            *map(numbers, (by_sum, by_out, by_stream, by_added)),
            None if by_weight is None else by_weight.data_ptr(),
        )
        library.library().norm_backward(ctypes.byref(described), ctypes.byref(gradients))
    return by_stream, by_added, None if by_weight is None else by_weight.sum(0).to(weight.dtype)


def _gate(gate: Any, up: Any) -> Any:
    out = torch.empty_like(gate)
    if has_memory(gate):
        _run(library.library().gated_forward, (gate, up, out), gate.numel())
    return out


def _save_gate(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
    ctx.save_for_backward(*inputs)


def _gate_formula(ctx: Any) -> Any:
    def gated(gate: Any, up: Any) -> Any:
        return (functional.silu(gate.float()) * up.float()).to(gate.dtype)

    return gated, ctx.saved_tensors


@or_by_formula(_gate_formula)
def _gate_backward(ctx: Any, outer: Any) -> Any:
    return GATE_GRADIENTS(outer, *ctx.saved_tensors)


def _gate_gradients(outer: Any, gate: Any, up: Any) -> Any:
    outer, found = outer.contiguous(), (torch.empty_like(gate), torch.empty_like(up))
    if has_memory(gate):
        gradients = (Numbers * 3)(*map(numbers, (outer, *found)))
        kernel = library.library().gated_backward
        kernel(ctypes.byref(numbers(gate)), ctypes.byref(numbers(up)), gradients, gate.numel())
    return found


def _rotate(states: Any, cosines: Any, sines: Any, dtype: Any, is_inverse: bool = False) -> Any:
    states = states if states.stride(3) == 1 else states.contiguous()
    _batches, heads, tokens, features = states.shape
    steps = heads * tokens * features, features, heads * features, 1
    out = states.new_empty_strided(states.shape, steps, dtype=dtype)  # no view, which nobody could change in place
    if has_memory(states):
        angles = cosines.contiguous(), sines.contiguous()
        rotation = _Rotation(
            *map(numbers, (states, out, *angles)),
            (ctypes.c_size_t * 4)(*states.shape),
            (ctypes.c_size_t * 3)(*states.stride()[:3]),
            (ctypes.c_size_t * 3)(*out.stride()[:3]),
            tokens * features if len(cosines) > 1 else 0,
            int(is_inverse),
        )
        library.library().rotated(ctypes.byref(rotation))
    return out


def _save_rotation(ctx: Any, inputs: Any, output: Any) -> None:
    states, cosines, sines, _dtype = inputs
    ctx.save_for_backward(cosines, sines)
    ctx.dtype, ctx.shape, ctx.out_dtype = states.dtype, states.shape, output.dtype


def _rotation_formula(ctx: Any) -> Any:
    cosines, sines = (angles.float()[:, None] for angles in ctx.saved_tensors)

    def rotated(states: Any) -> Any:
        first, second = states.float().chunk(2, -1)
        return (states * cosines + torch.cat((-second, first), -1) * sines).to(ctx.out_dtype)

    return rotated, (torch.zeros(ctx.shape, dtype=ctx.dtype, device="cpu", requires_grad=True),)


@or_by_formula(_rotation_formula)
def _rotation_backward(ctx: Any, outer: Any) -> Any:
    return ROTATION_GRADIENT(outer, *ctx.saved_tensors, ctx.dtype), None, None, None


def _rotation_gradient(outer: Any, cosines: Any, sines: Any, dtype: Any) -> Any:
    return _rotate(outer, cosines, sines, dtype, is_inverse=True)


def _run(kernel: Any, tensors: Any, count: int) -> None:
    kernel(*(ctypes.byref(numbers(tensor)) for tensor in tensors), count)


def _described(stream: Any, added: Any, total: Any, weight: Any, out: Any, inverses: Any, epsilon: float) -> _Norm:
    features = stream.shape[-1]
    return _Norm(
        *map(numbers, (stream, added, total, weight, out)),
        inverses.data_ptr(),
        stream.numel() // features,
        features,
        epsilon,
    )


NORM = Operator(
    "norm(Tensor stream, Tensor? added, Tensor weight, float epsilon, ScalarType dtype) "
    "-> (Tensor, Tensor, Tensor)",
    *(_norm, _save_norm, _norm_backward),
)
NORM_GRADIENTS = Operator(
    "norm_gradients(Tensor total, Tensor weight, Tensor inverses, Tensor? by_sum, Tensor by_out, "
    "ScalarType? added_dtype, bool needs_weight) -> (Tensor, Tensor, Tensor)",
    _norm_gradients,
)
GATE = Operator("gate(Tensor gate, Tensor up) -> Tensor", _gate, _save_gate, _gate_backward)
GATE_GRADIENTS = Operator(
    "gate_gradients(Tensor outer, Tensor gate, Tensor up) -> (Tensor, Tensor)", _gate_gradients
)
_ROTATION = "(Tensor states, Tensor cosines, Tensor sines, ScalarType dtype) -> Tensor"
ROTATION = Operator(f"rotation{_ROTATION}", _rotate, _save_rotation, _rotation_backward)
ROTATION_GRADIENT = Operator(f"rotation_gradient{_ROTATION}", _rotation_gradient)
