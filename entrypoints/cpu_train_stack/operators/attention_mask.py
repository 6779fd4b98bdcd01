"""Attention masks for the kernels (kernels/masks.hpp), in the caller's dtype and layout."""

from __future__ import annotations

import ctypes
from typing import Any

# As in kernels/masks.hpp. 0: no mask.
_TYPES = {"torch.float32": 1, "torch.bfloat16": 2, "torch.bool": 3}


class Mask(ctypes.Structure):
    """`steps`: strides of batch, head and query in bytes; 0 broadcasts. `type`: see _TYPES."""

    _fields_ = [("values", ctypes.c_void_p), ("steps", ctypes.c_size_t * 3), ("type", ctypes.c_uint32)]


def known(mask: Any, dtype: Any) -> bool:
    """Whether torch accepts the mask's dtype for attention in `dtype`. torch refuses other masks."""
    return mask.dtype is dtype or str(mask.dtype) in ("torch.bool", "torch.float32")


def readable(mask: Any, keys: int) -> Any:
    """`mask` [batch, head, query, key], or a copy in the same dtype if its keys are not contiguous in memory."""
    if mask is None or (mask.shape[3] == keys and mask.stride(3) == 1):
        return mask
    for dimension in range(3):
        if mask.stride(dimension) == 0:  # expanded
            mask = mask.narrow(dimension, 0, 1)
    return mask.expand(*mask.shape[:3], keys).contiguous()


def described(mask: Any) -> Mask:
    """The kernels' view of `mask` ([batch, head, query, key], readable, or None). `mask` must outlive the view."""
    if mask is None:
        return Mask()
    size = mask.element_size()
    steps = (0 if count == 1 else step * size for count, step in zip(mask.shape[:3], mask.stride()))
    return Mask(mask.data_ptr(), (ctypes.c_size_t * 3)(*steps), _TYPES[str(mask.dtype)])
