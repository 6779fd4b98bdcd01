"""Dropout that makes its random numbers itself, in kernels/dropout.cpp, instead of having them drawn singly.

torch on a CPU draws each number in turn, writes a tensor of them and reads it twice: a seventh of the time of a
BERT's training step. Here an element's number follows from its position and one seed, which is drawn from
torch's generator: torch.manual_seed, checkpoints of the generator and activation checkpointing work as ever, and
the result does not depend on the number of threads. The sequence is not torch's: masks for a seed are others.

An element is dropped if 16 random bits are less than round(65536 p), so the rate is within 2**-17 of `p`; what is
kept is divided by the rate of this kind exactly, so its mean is right.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

# "torch" leaves dropout to torch.
VARIABLE = "CPU_TRAIN_STACK_DROPOUT"
LIBRARY = Path(__file__).resolve().parent.parent / "kernels" / "libkernels.so"
# Below this the rate would be off by up to a hundredth of itself: torch's own dropout draws wider numbers.
SMALLEST = 2**-10
_STEPS = 65536
# The registration lives as long as this.
_libraries: list[Any] = []


def needed() -> bool:
    """Whether there is a kernel, and the user did not decide against it."""
    return LIBRARY.exists() and os.environ.get(VARIABLE, "") != "torch"


def install() -> None:
    """Takes this process's dropout over, wherever it is called. Types that no kernel is for stay torch's."""
    import torch

    if _libraries or not hasattr(torch, "library"):  # torch below 1.11 takes no operators from Python
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradCPU")
    _libraries.append(library)


def _dropout(tensor: Any, p: float, train: bool) -> Any:
    import torch

    if not train or p == 0 or not tensor.numel():
        return tensor
    threshold = round(p * _STEPS)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not _transformed()
    if not plain or str(tensor.dtype) not in _kernels() or p < SMALLEST or threshold >= _STEPS:
        return tensor * _noise(tensor, p)
    seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) & (2**64 - 1)
    return _function().apply(tensor, seed, threshold)


def _noise(tensor: Any, p: float) -> Any:
    """What torch multiplies with."""
    import torch

    if p == 1:
        return torch.zeros_like(tensor)
    return torch.empty_like(tensor).bernoulli_(1 - p).div_(1 - p)


def _transformed() -> bool:
    """Inside of torch.func's transforms, which take no autograd function of this form."""
    import torch

    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return bool(active and active())


@lru_cache(maxsize=1)
def _function() -> Any:
    """The autograd function. Its derivative by its input is itself, so derivatives of any order work."""
    import torch

    class Dropout(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, tensor: Any, seed: int, threshold: int) -> Any:
            ctx.rule = seed, threshold
            return _drop(tensor.detach(), seed, threshold)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return Dropout.apply(gradients[0], *ctx.rule), None, None

    return Dropout


def _drop(tensor: Any, seed: int, threshold: int) -> Any:
    import torch

    dense = tensor.contiguous()
    result = torch.empty_like(dense)
    kernel = _kernels()[str(dense.dtype)]
    kernel(dense.data_ptr(), result.data_ptr(), dense.numel(), seed, threshold, 1 / (1 - threshold / _STEPS))
    return result


@lru_cache(maxsize=1)
def _kernels() -> dict[str, Any]:
    """The kernel of each type, by torch's name of it."""
    library = ctypes.CDLL(str(LIBRARY))  # it computes on the threads of the OpenMP that torch has loaded
    kernels = {"torch.float32": library.dropout_float32, "torch.bfloat16": library.dropout_bfloat16}
    pointer = ctypes.c_void_p
    for kernel in kernels.values():
        kernel.argtypes = (pointer, pointer, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_float)
        kernel.restype = None
    return kernels
