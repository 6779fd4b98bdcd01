"""Attention with dropout: one pass over the scores between the two products (kernels/attention.cpp).

torch's fused kernel for CPUs knows no dropout: with it scaled_dot_product_attention becomes a chain of operators
over the whole matrix of scores, in float32 also for bfloat16 tensors. Here that matrix is read and written once in
each direction, and one tensor of its size is kept for the backward pass where torch keeps three.
The arithmetic is the chain's: products, softmax and dropout in float32, the result rounded once. Taken over is
what is float32 anyway: float32 tensors, and bfloat16 on a CPU without instructions for it.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Callable

from entrypoints import kernels, randomness
from entrypoints.bf16_products import autocast_dtype
from entrypoints.randomness import Rule

_Sizes = ctypes.c_size_t * 4
_Strides = ctypes.c_size_t * 3


def install(narrow_too: bool) -> None:
    """Takes torch.nn.functional's attention over where it drops. `narrow_too`: bfloat16 as well as float32."""
    from torch.nn import functional

    original = getattr(functional, "scaled_dot_product_attention", None)  # since 2.0
    if original is not None and kernels.library().attention_supported():
        functional.scaled_dot_product_attention = _attention(original, narrow_too)


def _attention(original: Callable[..., Any], narrow_too: bool) -> Callable[..., Any]:
    import torch

    types = (torch.float32, torch.bfloat16) if narrow_too else (torch.float32,)

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **others: Any,
    ) -> Any:
        given = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        dtype = _computed_in(query)
        ours = (
            dropout_p > 0
            and not any(others.values())
            and randomness.plain(*given)
            and all(tensor.dim() == 4 for tensor in given)
            and dtype in types
            and query.shape[:2] == key.shape[:2] == value.shape[:2]
            and not (is_causal and attn_mask is not None)
            and _fits(attn_mask, query, key)
        )
        rule = randomness.draw(dropout_p) if ours else None
        if rule is None:
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **others)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.autocast("cpu", enabled=False):
            wide = [tensor.to(dtype).float() for tensor in (query, key, value)]
            bias = _bias(attn_mask, is_causal, query.shape[2], key.shape[2])
            return _function().apply(*wide, bias, factor, rule).to(dtype)

    return scaled_dot_product_attention


def _computed_in(query: Any) -> Any:
    """The type that attention has: autocast's, or the tensors' own."""
    import torch

    return (autocast_dtype() if query.dtype is torch.float32 else None) or query.dtype


def _fits(mask: Any, query: Any, key: Any) -> bool:
    """Whether a mask is known here; what is wrong with another, torch says best."""
    if mask is None:
        return True
    wanted = (*query.shape[:3], key.shape[2])
    return not mask.requires_grad and all(size in (1, whole) for size, whole in zip(mask.shape, wanted))


def _bias(mask: Any, causal: bool, queries: int, keys: int) -> Any:
    """What is added to the scores: float32, whose last dimension is the keys; None for nothing."""
    import torch

    if causal:
        mask = torch.ones(1, 1, queries, keys, dtype=torch.bool).tril()
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    return mask.float().expand(*mask.shape[:3], keys).contiguous()


@lru_cache(maxsize=1)
def _function() -> Any:
    """The autograd function: float32 [batch, heads, queries or keys, features], a bias that may be broadcast."""
    import torch

    class Attention(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any, factor: float, rule: Rule) -> Any:
            ctx.shape, ctx.factor, ctx.rule = query.shape, factor, rule
            query, key, value = (tensor.detach().flatten(0, 1) for tensor in (query, key, value))
            marked = torch.bmm(query, key.transpose(1, 2))
            weights = torch.empty_like(marked)
            sizes = _Sizes(*ctx.shape[:2], *marked.shape[1:])
            strides = _Strides(*(0 if size == 1 else step for size, step in _dimensions(bias)))
            kernels.library().attention_forward(
                *(
                    marked.data_ptr(),
                    weights.data_ptr(),
                    None if bias is None else bias.data_ptr(),
                    strides,
                    sizes,
                ),
                *(factor, rule.seed, rule.threshold, rule.scale),
            )
            ctx.save_for_backward(query, key, value, marked)
            return torch.bmm(weights, value).unflatten(0, ctx.shape[:2])

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: Any) -> Any:
            query, key, value, marked = ctx.saved_tensors
            outer = gradients[0].flatten(0, 1)
            scores = torch.bmm(outer, value.transpose(1, 2))  # by the weights, then by the scores
            weights = torch.empty_like(scores)
            kernels.library().attention_backward(
                *(marked.data_ptr(), scores.data_ptr(), weights.data_ptr()),
                *(marked.shape[0] * marked.shape[1], marked.shape[2], ctx.factor, ctx.rule.scale),
            )
            found = (
                torch.bmm(scores, key),
                torch.bmm(scores.transpose(1, 2), query),
                torch.bmm(weights.transpose(1, 2), outer),
            )
            return (*(each.unflatten(0, ctx.shape[:2]) for each in found), None, None, None)

    return Attention


def _dimensions(bias: Any) -> list[tuple[int, int]]:
    """Size and stride of a bias's batch, head and query dimensions."""
    return [(1, 0)] * 3 if bias is None else list(zip(bias.shape[:3], bias.stride()[:3]))
