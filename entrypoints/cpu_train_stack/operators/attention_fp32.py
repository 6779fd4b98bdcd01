"""Attention with dropout in float32: one pass over the scores between the two products (kernels/attention.cpp).

Forward and backward pass read and write the matrix of scores once. One tensor of its size is kept for the backward
pass; torch keeps three. The arithmetic is the same as in torch's chain of operators.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from cpu_train_stack.operators import attention_mask, library
from cpu_train_stack.operators.dropout import Rule
from cpu_train_stack.operators.transforms import or_by_formula

_Sizes = ctypes.c_size_t * 4


def supported() -> bool:
    """Whether this CPU has the kernel's instructions."""
    return bool(library.library().attention_supported())


def attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, factor: float, rule: Rule) -> Any:
    """Attention computed in float32. See attention.Kernel for shapes. Returns the dtype of `query`."""
    import torch

    sharing = query.shape[1] // key.shape[1]
    if sharing > 1:
        key, value = (tensor.repeat_interleave(sharing, 1) for tensor in (key, value))
    if causal:
        mask = torch.ones((1, 1, query.shape[2], key.shape[2]), dtype=torch.bool, device="cpu").tril()
    wide = (tensor.float().flatten(0, 1) for tensor in (query, key, value))
    return _function().apply(*wide, mask, query.shape[:2], factor, rule).to(query.dtype)


def _formula(ctx: Any) -> Any:
    """The scores of the formula, shifted by constants to the logarithms of the kernel's probabilities."""
    query, key, value, marked = ctx.saved_tensors
    kept = (~marked.signbit()) * ctx.rule.scale
    logarithms = marked.abs().log()

    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.transpose(1, 2) * ctx.factor
        weights = (scores - scores.detach() + logarithms).exp()
        weights = weights / weights.sum(-1, keepdim=True).masked_fill(marked.abs().sum(-1, keepdim=True) == 0, 1)
        return (weights * kept @ value).unflatten(0, ctx.heads)

    return attention, (query, key, value)


@lru_cache(maxsize=1)
def _function() -> Any:
    """The autograd function. Tensors: float32 [batch * heads, queries or keys, features]. Masks may broadcast.

    Returns [batch, heads, queries, features].
    """
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, query: Any, key: Any, value: Any, mask: Any, heads: Any, factor: float, rule: Rule
        ) -> Any:
            ctx.heads, ctx.factor, ctx.rule = heads, factor, rule
            marked = torch.bmm(query, key.transpose(1, 2))
            weights = torch.empty_like(marked)
            sizes = _Sizes(*heads, *marked.shape[1:])
            library.library().attention_forward(
                *(marked.data_ptr(), weights.data_ptr(), ctypes.byref(attention_mask.described(mask)), sizes),
                *(factor, rule.seed, rule.threshold, rule.scale),
            )
            ctx.save_for_backward(query, key, value, marked)
            out = torch.empty((*heads, query.shape[1], value.shape[2]), dtype=torch.float32, device="cpu")
            torch.bmm(weights, value, out=out.view(-1, *out.shape[2:]))
            return out

        @staticmethod
        @or_by_formula(_formula)
        def backward(ctx: Any, *gradients: Any) -> Any:
            query, key, value, marked = ctx.saved_tensors
            outer = gradients[0].flatten(0, 1)
            # The gradient of the weights. The kernel replaces it by the gradient of the scores.
            scores = torch.bmm(outer, value.transpose(1, 2))
            weights = torch.empty_like(scores)
            library.library().attention_backward(
                *(marked.data_ptr(), scores.data_ptr(), weights.data_ptr()),
                *(marked.shape[0] * marked.shape[1], marked.shape[2], ctx.factor, ctx.rule.scale),
            )
            return (
                torch.bmm(scores, key),
                torch.bmm(scores.transpose(1, 2), query),
                torch.bmm(weights.transpose(1, 2), outer),
                *[None] * 4,
            )

    return Attention
