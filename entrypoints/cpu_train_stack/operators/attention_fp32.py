"""Attention with dropout in float32: one pass over the scores between the two products (kernels/attention.cpp).

Forward and backward pass read and write the matrix of scores once. One tensor of its size is kept for the backward
pass; torch keeps three. The arithmetic is the same as in torch's chain of operators.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from cpu_train_stack.operators import attention_mask, library
from cpu_train_stack.operators.bf16_products import autocast_dtype
from cpu_train_stack.operators.dropout import Rule, number_of, scale_of
from cpu_train_stack.operators.registration import Operator, has_memory
from cpu_train_stack.operators.transforms import or_by_formula

_Sizes = ctypes.c_size_t * 4


def supported() -> bool:
    """Whether this CPU has the kernel's instructions."""
    return bool(library.library().attention_supported())


def attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, factor: float, rule: Rule) -> Any:
    """Attention computed in float32. See attention.Kernel for shapes. Returns the dtype of `query`."""
    sharing = query.shape[1] // key.shape[1]
    if sharing > 1:
        key, value = (tensor.repeat_interleave(sharing, 1) for tensor in (key, value))
    if causal:
        mask = torch.ones((1, 1, query.shape[2], key.shape[2]), dtype=torch.bool, device="cpu").tril()
    wide = (tensor.float().flatten(0, 1) for tensor in (query, key, value))
    out = ATTENTION(*wide, mask, query.shape[:2], factor, rule.seed, rule.threshold)
    return out.to(query.dtype)


def _attention(
    query: Any, key: Any, value: Any, mask: Any, heads: Any, factor: float, seed: Any, threshold: int
) -> Any:
    """Tensors: float32 [batch * heads, queries or keys, features]. `heads`: batch and heads. Masks may broadcast.

    Returns [batch, heads, queries, features], and the probabilities, with a minus sign where they are dropped.
    """
    marked = torch.bmm(query, key.transpose(1, 2))
    weights = torch.empty_like(marked)
    out = torch.empty((*heads, query.shape[1], value.shape[2]), dtype=torch.float32, device="cpu")
    if has_memory(marked):
        library.library().attention_forward(
            *(marked.data_ptr(), weights.data_ptr(), ctypes.byref(attention_mask.described(mask))),
            _Sizes(*heads, *marked.shape[1:]),
            *(factor, number_of(seed), threshold, scale_of(threshold)),
        )
        torch.bmm(weights, value, out=out.view(-1, *out.shape[2:]))
    return out, marked


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, _mask, ctx.heads, ctx.factor, _seed, threshold = inputs
    ctx.scale = scale_of(threshold)
    ctx.save_for_backward(query, key, value, output[1])


def _formula(ctx: Any) -> Any:
    """The scores of the formula, shifted by constants to the logarithms of the kernel's probabilities."""
    query, key, value, marked = ctx.saved_tensors
    kept = (~marked.signbit()) * ctx.scale
    logarithms = marked.abs().log()

    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.transpose(1, 2) * ctx.factor
        weights = (scores - scores.detach() + logarithms).exp()
        weights = weights / weights.sum(-1, keepdim=True).masked_fill(marked.abs().sum(-1, keepdim=True) == 0, 1)
        return (weights * kept @ value).unflatten(0, ctx.heads)

    return attention, (query, key, value)


@or_by_formula(_formula)
def _backward(ctx: Any, outer: Any, *_by_marked: Any) -> Any:
    found = ATTENTION_GRADIENTS(outer.flatten(0, 1), *ctx.saved_tensors, ctx.factor, ctx.scale)
    return (*found, *[None] * 5)


def _gradients(outer: Any, query: Any, key: Any, value: Any, marked: Any, factor: float, scale: float) -> Any:
    if autocast_dtype() is not None:  # which a script may extend to its backward pass
        with torch.autocast("cpu", enabled=False):
            return _gradients(outer, query, key, value, marked, factor, scale)
    # The gradient of the weights. The kernel replaces it by the gradient of the scores.
    scores = torch.bmm(outer, value.transpose(1, 2))
    weights = torch.empty_like(scores)
    if has_memory(scores):
        library.library().attention_backward(
            *(marked.data_ptr(), scores.data_ptr(), weights.data_ptr()),
            *(marked.shape[0] * marked.shape[1], marked.shape[2], factor, scale),
        )
    return (
        torch.bmm(scores, key),
        torch.bmm(scores.transpose(1, 2), query),
        torch.bmm(weights.transpose(1, 2), outer),
    )


ATTENTION = Operator(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, SymInt[] heads, float factor, Tensor? seed, "
    "int threshold) -> (Tensor, Tensor)",
    *(_attention, _save, _backward),
    returns_first=True,
)
ATTENTION_GRADIENTS = Operator(
    "attention_gradients(Tensor outer, Tensor query, Tensor key, Tensor value, Tensor marked, float factor, "
    "float scale) -> (Tensor, Tensor, Tensor)",
    _gradients,
)
