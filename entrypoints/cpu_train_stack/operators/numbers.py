"""Tensors for the kernels of layers (kernels/numbers.hpp)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from cpu_train_stack.operators import library
from cpu_train_stack.operators.bf16_products import autocast_dtype
from cpu_train_stack.operators.dropout import are_plain
from cpu_train_stack.operators.transforms import is_left_to_torch

_DTYPES = (torch.float32, torch.bfloat16)


class Numbers(ctypes.Structure):
    """As in kernels/numbers.hpp."""

    _fields_ = [("values", ctypes.c_void_p), ("is_narrow", ctypes.c_uint32)]


def numbers(tensor: Any) -> Numbers:
    """A tensor in float32 or bfloat16, or None."""
    return Numbers() if tensor is None else Numbers(tensor.data_ptr(), tensor.dtype == torch.bfloat16)


def supported() -> bool:
    """Whether this image has the kernels, and this CPU their instructions."""
    return library.LIBRARY.exists() and bool(library.library().layers_supported())


def computable(*tensors: Any) -> bool:
    """Whether the kernels support these tensors, and results in autocast's dtype."""
    return (
        are_plain(*tensors)
        and all(tensor.dtype in _DTYPES and tensor.numel() for tensor in tensors)
        and autocast_dtype() in (None, *_DTYPES)
        and not is_left_to_torch()
    )
