"""A frozen linear layer with a LoRA adapter: x W' + b + s (x A') B', with x cast once, and the sum in one pass.

peft computes both branches separately: each casts x, and the result is scaled and added in passes of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from cpu_train_stack.operators import bf16_products, four_bits
from cpu_train_stack.operators.transforms import is_compiling, like, or_by_formula


def adapted_linear(
    states: Any, weight: Any, bias: Any, down: Any, up: Any, scaling: float, dtype: Any, dropped: Any = None
) -> torch.Tensor:
    """Computed in `dtype`, with sums in float32 inside each product.

    `states`: [..., inputs]; `dropped`: the same after dropout, the adapter's input if given. `weight`:
    [outputs, inputs], also in 4 bits, and `bias`: [outputs] or None, without gradients; `down`: [rank, inputs];
    `up`: [outputs, rank]. Returns [..., outputs] in `dtype`.
    """
    with torch.autocast("cpu", enabled=False):
        # Outside of the function, whose results must not be views: a script may change them in place.
        rows = states.to(dtype).reshape(-1, states.shape[-1])
        inputs = None if dropped is None else dropped.reshape(-1, states.shape[-1])
        if is_compiling():  # which derives the backward pass, and decides what is kept
            narrow = None if bias is None else bias.to(dtype)
            found = _sum_of(rows, inputs, weight.to(dtype), narrow, down, up, scaling)
            return found.view(*states.shape[:-1], found.shape[-1])
        found = _Adapted.apply(rows, inputs, weight, bias, down, up, scaling)
    return found.view(*states.shape[:-1], found.shape[-1])


def _sum_of(rows: Any, dropped: Any, weight: Any, bias: Any, down: Any, up: Any, scaling: float) -> Any:
    """By torch's operators."""
    dtype = rows.dtype
    thin = (rows if dropped is None else dropped) @ down.to(dtype).t()
    return torch.addmm(functional.linear(rows, weight, bias), thin, (up * scaling).to(dtype).t())


def _formula(ctx: Any) -> Any:
    inputs, weight, down, up, *_narrow = ctx.saved_tensors
    dtype = inputs.dtype
    weight = four_bits.unpacked(ctx.packed, dtype) if weight is None else weight

    def adapted(rows: Any, dropped: Any, _weight: None, _bias: None, down: Any, up: Any) -> Any:
        return _sum_of(rows, dropped, weight, None, down, up, ctx.scaling)

    # The function is linear in the rows: their values matter only as the adapter's input.
    given = (like(inputs), inputs) if ctx.has_dropped else (inputs, None)
    return adapted, (*given, None, None, down, up)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Any, dropped: Any, weight: Any, bias: Any, down: Any, up: Any, scaling: float
    ) -> Any:
        dtype, inputs = rows.dtype, rows if dropped is None else dropped
        is_packed = four_bits.is_packed(weight)
        full = four_bits.unpacked(weight, dtype) if is_packed else weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        narrow_down, narrow_up = down.to(dtype), (up * scaling).to(dtype)
        thin = inputs @ narrow_down.t()
        out = _added(functional.linear(rows, full, bias), thin, narrow_up.t())
        ctx.packed = weight if is_packed else None  # instead of a copy with all bits
        ctx.save_for_backward(inputs, None if is_packed else full, down, up, narrow_down, narrow_up, thin)
        ctx.scaling, ctx.dtypes, ctx.has_dropped = scaling, (down.dtype, up.dtype), dropped is not None
        return out

    @staticmethod
    @or_by_formula(_formula)
    def backward(ctx: Any, outer: Any) -> Any:
        inputs, weight, _down, _up, down, up, thin = ctx.saved_tensors
        by_thin = outer @ up
        by_states = None
        if ctx.needs_input_grad[0]:
            by_states = outer @ (weight if ctx.packed is None else four_bits.unpacked(ctx.packed, outer.dtype))
        by_dropped = None
        if ctx.has_dropped:
            by_dropped = by_thin @ down if ctx.needs_input_grad[1] else None
        elif by_states is not None:
            by_states = _added(by_states, by_thin, down)
        by_down = (by_thin.t() @ inputs).to(ctx.dtypes[0])
        by_up = (thin.t() @ outer).t().to(ctx.dtypes[1]) * ctx.scaling
        return by_states, by_dropped, None, None, by_down, by_up, None


def _added(total: Any, left: Any, right: Any) -> Any:
    """total + left @ right. Overwrites `total`."""
    if total.dtype is torch.bfloat16 and bf16_products.is_installed():
        return torch.addmm(total, left, right)  # which is computed in float32
    return total.addmm_(left, right)
