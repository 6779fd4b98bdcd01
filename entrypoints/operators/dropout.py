"""Dropout that generates its random numbers in the kernel (kernels/dropout.cpp), instead of drawing them singly.

torch on a CPU draws each number in turn, writes a tensor of them and reads it twice: a seventh of the time of a
BERT's training step. Here an element's number follows from its position and one seed, which is drawn from
torch's generator: torch.manual_seed, checkpoints of the generator and activation checkpointing work as ever, and
the result does not depend on the number of threads. The sequence is not torch's: masks for a seed are others.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from entrypoints.operators import library as kernels
from entrypoints.operators import randomness
from entrypoints.operators.randomness import Rule

# "torch" turns off this kernel. Attention has its own dropout.
_KERNELS = {"torch.float32": "dropout_float32", "torch.bfloat16": "dropout_bfloat16"}
# The registration lives as long as this.
_libraries: list[Any] = []


def install() -> None:
    """Takes this process's dropout over, wherever it is called. Types that no kernel is for stay torch's."""
    import torch

    if _libraries or not hasattr(torch, "library"):  # torch below 1.11 takes no operators from Python
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradCPU")
    _libraries.append(library)


def _dropout(tensor: Any, p: float, train: bool) -> Any:
    if not train or p == 0 or not tensor.numel():
        return tensor
    ours = str(tensor.dtype) in _KERNELS and randomness.plain(tensor)
    rule = randomness.draw(p) if ours else None
    return _function().apply(tensor, rule, None) if rule else tensor * _noise(tensor, p)


def _noise(tensor: Any, p: float) -> Any:
    """What torch multiplies with."""
    import torch

    if p == 1:
        return torch.zeros_like(tensor)
    return torch.empty_like(tensor).bernoulli_(1 - p).div_(1 - p)


@lru_cache(maxsize=1)
def _function() -> Any:
    """The autograd function. Its derivative by its input is itself, so derivatives of any order work."""
    import torch

    class Dropout(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, tensor: Any, rule: Rule, strides: Any) -> Any:
            result = drop(tensor.detach(), rule, strides)
            ctx.how = rule, result.stride()
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return Dropout.apply(gradients[0], *ctx.how), None, None

    return Dropout


def drop(tensor: Any, rule: Rule, strides: Any = None) -> Any:
    """A copy of `tensor` (float32 or bfloat16) with elements dropped by their position in memory.

    `strides`: the result's, without gaps or overlaps. Default: those that torch preserves of `tensor`'s.
    """
    import torch

    result = torch.empty_like(tensor) if strides is None else tensor.new_empty_strided(tensor.shape, strides)
    if tensor.stride() != result.stride():
        tensor = result.copy_(tensor)
    kernel = getattr(kernels.library(), _KERNELS[str(result.dtype)])
    kernel(tensor.data_ptr(), result.data_ptr(), result.numel(), rule.seed, rule.threshold, rule.scale)
    return result
