"""aten::dropout for tensors in float32 and bfloat16, as an operator that torch.compile keeps in its graphs."""

from __future__ import annotations

from typing import Any

import torch

from cpu_train_stack.operators import library
from cpu_train_stack.operators.dropout import Rule, are_plain, draw_rule, number_of, scale_of
from cpu_train_stack.operators.registration import Operator, has_memory, is_in_graph
from cpu_train_stack.operators.transforms import have_tangents, is_batched

_KERNELS = {torch.float32: "dropout_float32", torch.bfloat16: "dropout_bfloat16"}


def dropout(tensor: Any, p: float, train: bool) -> Any:
    """aten::dropout for tensors of any shape. Returns the tensor's shape and dtype."""
    if not 0 <= p <= 1:
        return torch.feature_dropout(tensor, p, train)  # raises torch's own error
    if not train or p == 0 or not tensor.numel():
        return tensor
    has_kernel = tensor.dtype in _KERNELS and (are_plain(tensor) or is_in_graph(tensor))
    rule = draw_rule(p) if has_kernel else None
    return DROPOUT(tensor, rule.seed, rule.threshold, None) if rule else tensor * _noise(tensor, p)


def _noise(tensor: Any, p: float) -> Any:
    """torch's mask: zeros and 1 / (1 - p), of the tensor's shape and dtype."""
    if p == 1:
        return torch.zeros_like(tensor)
    return torch.empty_like(tensor).bernoulli_(1 - p).div_(1 - p)


def drop(tensor: Any, rule: Rule) -> Any:
    """A copy of `tensor` (float32 or bfloat16, any shape) with elements dropped by their position in memory."""
    return _dropped(tensor, rule.seed, rule.threshold, None)


def _dropped(tensor: Any, seed: Any, threshold: int, strides: Any) -> Any:
    """`strides`: of the result, without gaps or overlaps. None: those of torch.empty_like."""
    result = torch.empty_like(tensor) if strides is None else tensor.new_empty_strided(tensor.shape, strides)
    if has_memory(result):
        if tensor.stride() != result.stride():
            tensor = result.copy_(tensor)
        kernel = getattr(library.library(), _KERNELS[result.dtype])
        pointers = tensor.data_ptr(), result.data_ptr()
        kernel(*pointers, result.numel(), number_of(seed), threshold, scale_of(threshold))
    return result


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    _tensor, seed, threshold, _strides = inputs
    ctx.how = seed, threshold, output.stride()


def _backward(ctx: Any, outer: Any) -> Any:
    """By the operator itself, so that derivatives of any order work."""
    seed, threshold, strides = ctx.how
    if is_batched(outer) or have_tangents((outer,)):  # each of its gradients has the shape of `outer`
        ones = torch.ones(outer.shape, dtype=outer.dtype, device="cpu")
        return outer * _dropped(ones, seed, threshold, strides), None, None, None
    return DROPOUT(outer, seed, threshold, strides), None, None, None


DROPOUT = Operator(
    "dropout(Tensor tensor, Tensor? seed, int threshold, SymInt[]? strides) -> Tensor",
    *(_dropped, _save, _backward),
)
