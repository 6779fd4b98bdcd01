"""Weights of linear layers that bitsandbytes keeps in 4 bits, two in each byte."""

from __future__ import annotations

from typing import Any


def is_packed(weight: Any) -> bool:
    """Whether a weight is in 4 bits, in the layout that `unpacked` reads.

    bitsandbytes has another layout for inference (packing_format_for_cpu).
    """
    state = getattr(weight, "quant_state", None)
    return state is not None and not getattr(state, "packing_format_for_cpu", False)


def unpacked(weight: Any, dtype: Any) -> Any:
    """The weight in `dtype`, [outputs, inputs]."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state).to(dtype)
