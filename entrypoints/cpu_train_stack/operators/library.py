"""Load the library of kernels (built from kernels/). Torch-free."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from cpu_train_stack import contract

# Beside the package, in a folder that Python cannot import.
LIBRARY = Path(__file__).resolve().parents[2] / "cpu_train_stack.libs" / "libkernels.so"


def wanted(variable: str) -> bool:
    """Whether the library exists, and the user has turned off neither all kernels nor those of `variable`."""
    return LIBRARY.exists() and not any(os.environ.get(name) == "torch" for name in (contract.KERNELS, variable))


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The library. Call it after torch is imported: the kernels use the threads of torch's OpenMP."""
    loaded = ctypes.CDLL(str(LIBRARY))
    pointer, size, number, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_float
    threshold = ctypes.c_uint32
    for kernel in (loaded.dropout_float32, loaded.dropout_bfloat16):
        kernel.argtypes = (pointer, pointer, size, number, threshold, real)
        kernel.restype = None
    loaded.attention_forward.argtypes = (
        *(pointer, pointer, pointer, ctypes.POINTER(size)),
        *(real, number, threshold, real),
    )
    loaded.attention_forward.restype = None
    loaded.attention_backward.argtypes = (pointer, pointer, pointer, size, size, real, real)
    loaded.attention_backward.restype = None
    loaded.attention_supported.restype = ctypes.c_int
    for kernel in (loaded.attention_bfloat16_forward, loaded.attention_float32_rows_forward):
        kernel.argtypes, kernel.restype = (pointer,), size
    for kernel in (loaded.attention_bfloat16_backward, loaded.attention_float32_rows_backward):
        kernel.argtypes, kernel.restype = (pointer, pointer), size
    loaded.attention_bfloat16_supported.restype = ctypes.c_int
    loaded.attention_amx_permitted.restype = ctypes.c_int
    loaded.layers_supported.restype = ctypes.c_int
    loaded.norm_forward.argtypes = (pointer,)
    loaded.norm_backward.argtypes = (pointer, pointer)
    loaded.rotated.argtypes = (pointer,)
    for kernel in (loaded.add_forward, loaded.gated_forward, loaded.gated_backward):
        kernel.argtypes = (pointer, pointer, pointer, size)
    for kernel in (loaded.norm_forward, loaded.norm_backward, loaded.rotated, loaded.add_forward):
        kernel.restype = None
    loaded.gated_forward.restype = loaded.gated_backward.restype = None
    for kernel, arguments in (
        (loaded.sum_forward, (pointer,)),
        (loaded.sum_narrow, (pointer,)),
        (loaded.sum_backward, (pointer, pointer)),
        (loaded.total_of, (pointer, size)),
        (loaded.gelu_forward, (pointer, pointer, size)),
        (loaded.gelu_backward, (pointer, pointer, pointer, size)),
    ):
        kernel.argtypes, kernel.restype = arguments, None
    return loaded
