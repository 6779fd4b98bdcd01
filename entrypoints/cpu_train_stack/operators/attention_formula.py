"""Attention by torch's operators, with the numbers of the kernels' dropout, for second derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch

from cpu_train_stack.operators.dropout import Rule
from cpu_train_stack.operators.dropout_operator import drop

_BLOCK = 64  # random numbers, as in kernels/philox.hpp; a row of scores begins with a block of its own


def formula(ctx: Any) -> Any:
    """See transforms.or_by_formula."""
    query, key, value, mask, starts, *_statistics = ctx.saved_tensors
    causal, factor, *drawn, _amx = ctx.how
    rule = Rule(*drawn)

    def attention(query: Any, key: Any, value: Any) -> Any:
        sharing = query.shape[1] // key.shape[1]
        dtype, query = query.dtype, query.float()
        key, value = (tensor.float().repeat_interleave(sharing, 1) for tensor in (key, value))
        if starts is None:
            kept = _kept(query.shape[:3].numel(), key.shape[2], rule)
            return _attention(query, key, value, mask, causal, factor, kept).to(dtype)
        return _rows(query, key, value, starts.tolist(), causal, factor, rule).to(dtype)

    return attention, (query, key, value)


def _rows(query: Any, key: Any, value: Any, starts: list[int], causal: bool, factor: float, rule: Rule) -> Any:
    """Rows end to end. The blocks of each row of the batch begin where they would for the longest one."""
    heads, pairs, found = query.shape[1], list(zip(starts, starts[1:])), []
    longest = _width(max(end - start for start, end in pairs))
    for start, end in pairs:
        tokens, count = slice(start, end), end - start
        kept = _kept(heads * count, count, rule, start * heads * longest)
        row = query[:, :, tokens], key[:, :, tokens], value[:, :, tokens]
        found.append(_attention(*row, None, causal, factor, kept))
    return torch.cat(found, 2)


def _attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, factor: float, kept: Any) -> Any:
    """`kept`: the factors of the weights, None without dropout."""
    scores = query @ key.transpose(2, 3) * factor
    hidden = torch.zeros(scores.shape[2:], dtype=torch.bool, device="cpu")
    if causal:
        hidden = ~torch.ones_like(hidden).tril()
    if mask is not None and mask.dtype is torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        scores = scores + mask.float()
        hidden = hidden | (mask == -math.inf)
    # A query whose keys are all hidden has weights of zero, not NaN.
    is_empty = hidden.all(-1, keepdim=True)
    weights = scores.masked_fill(hidden & ~is_empty, -math.inf).masked_fill(is_empty, 0).softmax(-1)
    weights = weights.masked_fill(is_empty, 0)
    return (weights if kept is None else weights * kept.view_as(weights)) @ value


def _width(keys: int) -> int:
    return -(-keys // _BLOCK) * _BLOCK


def _kept(rows: int, keys: int, rule: Rule, earlier: int = 0) -> Any:
    """The factors of the weights, float32 [rows, keys], None without dropout. `earlier`: numbers before them."""
    if rule.threshold == 0:
        return None
    width = _width(keys)
    numbers = torch.ones(earlier + rows * width, dtype=torch.float32, device="cpu")
    return drop(numbers, rule)[earlier:].view(rows, width)[:, :keys]
