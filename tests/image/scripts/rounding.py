"""Compares results of parts of layers with those of their formulas in double precision."""

from __future__ import annotations

from typing import Any

import torch

BF16, FP32 = torch.bfloat16, torch.float32
# Of one rounding to the dtype, relative to the largest value of the tensor; sums of fp32 have a few.
TOLERANCES = {FP32: 3e-6, BF16: 2**-8}


def close(found: Any, expected: Any, dtype: Any = None, factor: float = 1.0) -> None:
    """`dtype`: in which the result was rounded, if not its own."""
    scale = float(expected.abs().max()) or 1.0
    distance = float((found.detach().double() - expected).abs().max()) / scale
    assert distance <= factor * TOLERANCES[dtype or found.dtype], (distance, found.dtype, tuple(found.shape))


def doubles(*tensors: Any) -> list[Any]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def values(*shape: int, dtype: Any = FP32) -> Any:
    return torch.randn(*shape).to(dtype).requires_grad_()
