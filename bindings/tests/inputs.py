"""What collectives.py calls: types, operations with their references, and tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
TYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
ReduceOp = dist.ReduceOp
Reducer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ARITHMETIC: dict[Any, Reducer] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.PRODUCT: operator.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}
BITWISE: dict[Any, Reducer] = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
LOGICAL: dict[Any, Reducer] = {
    ReduceOp.SUM: torch.logical_or,
    ReduceOp.MAX: torch.logical_or,
    ReduceOp.PRODUCT: torch.logical_and,
    ReduceOp.MIN: torch.logical_and,
    **BITWISE,
}


def operations(dtype: torch.dtype) -> dict[Any, Reducer]:
    if dtype == torch.bool:
        return LOGICAL
    if dtype in COMPLEX:
        return {ReduceOp.SUM: operator.add}
    return {**ARITHMETIC, **BITWISE} if dtype in INTEGERS else ARITHMETIC


def make(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Small integers: exact in every type, in any order of the additions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 3, shape, generator=generator).to(dtype)


def layouts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same values, contiguous and, with two dimensions, also not contiguous."""
    yield tensor.clone()
    if tensor.dim() == 2:
        yield tensor.t().contiguous().t()
        yield torch.stack([tensor, tensor], dim=-1)[..., 0]
