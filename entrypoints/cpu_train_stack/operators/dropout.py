"""Dropout whose kernel generates its own random numbers (kernels/dropout.cpp).

torch on a CPU draws the numbers one by one, writes a tensor of them and reads it twice, which takes a seventh of
the time of BERT's training step. Here, the number of an element follows from its position and one seed, which is
drawn from torch's generator: torch.manual_seed, checkpoints of the generator and activation checkpointing work as
before, and the result does not depend on the number of threads. The masks for a seed differ from torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cpu_train_stack.operators import library
from cpu_train_stack.operators.transforms import is_batched, is_compiling

_KERNELS = {"torch.float32": "dropout_float32", "torch.bfloat16": "dropout_bfloat16"}
# A random number has 16 bits.
_NUMBERS = 65536
# Below this rate, the error of 16 bits would be up to a hundredth of the rate: torch draws wider numbers.
SMALLEST_RATE = 2**-10
# The registration lasts as long as this object.
_libraries: list[Any] = []


@dataclass(frozen=True)
class Rule:
    """Drop an element if its number is less than `threshold`, and multiply the other elements by `scale`."""

    seed: Any
    threshold: int

    @property
    def scale(self) -> float:
        return 1 / (1 - self.threshold / _NUMBERS)


def draw_rule(p: float) -> Rule | None:
    """A rule whose rate is within 2**-17 of `p`, with a seed of torch's generator.

    None if 16 bits are too coarse, or if torch refuses the rate.
    """
    import torch

    threshold = round(p * _NUMBERS) if SMALLEST_RATE <= p <= 1 else _NUMBERS  # not if p is NaN
    if threshold >= _NUMBERS:
        return None
    if is_compiling():  # in a graph, the number does not exist yet
        return Rule(torch.randint(-(2**63), 2**63 - 1, (), device="cpu"), threshold)
    seed = torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None)
    return Rule(int(seed) & (2**64 - 1), threshold)


def are_plain(*tensors: Any) -> bool:
    """Whether all are strided tensors in this machine's memory: no subclass, not nested, not inside a transform of
    torch.func, and without a tangent (forward-mode differentiation)."""
    import torch

    if is_compiling():  # torch's own transforms do not reach the operators in a graph
        return all(
            type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
            for tensor in tensors
        )
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return not (active and active()) and all(map(_is_plain, tensors))


def _is_plain(tensor: Any) -> bool:
    import torch

    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not getattr(tensor, "is_nested", False)  # since 1.12
        and torch.autograd.forward_ad.unpack_dual(tensor).tangent is None
    )


def install() -> None:
    """Replace dropout in this process. torch's own dropout still handles dtypes other than float32 and
    bfloat16."""
    import torch

    if _libraries or not hasattr(torch, "library"):  # torch before 1.11 has no operators in Python
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradCPU")
    _libraries.append(library)


def is_installed() -> bool:
    """Whether dropout in this process is this project's."""
    return bool(_libraries)


def _dropout(tensor: Any, p: float, train: bool) -> Any:
    """aten::dropout for tensors of any shape. Returns the tensor's shape and dtype."""
    if not 0 <= p <= 1:
        import torch

        return torch.feature_dropout(tensor, p, train)  # raises torch's own error
    if not train or p == 0 or not tensor.numel():
        return tensor
    has_kernel = str(tensor.dtype) in _KERNELS and are_plain(tensor)
    rule = draw_rule(p) if has_kernel else None
    return _function().apply(tensor, rule, None) if rule else tensor * _noise(tensor, p)


def _noise(tensor: Any, p: float) -> Any:
    """torch's mask: zeros and 1 / (1 - p), of the tensor's shape and dtype."""
    import torch

    if p == 1:
        return torch.zeros_like(tensor)
    return torch.empty_like(tensor).bernoulli_(1 - p).div_(1 - p)


@lru_cache(maxsize=1)
def _function() -> Any:
    """The autograd function. Its derivative is the function itself, so that derivatives of any order work."""
    import torch

    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Any, rule: Rule, strides: Any) -> Any:
            result = drop(tensor.detach(), rule, strides)
            ctx.how = rule, result.stride()
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            outer, (rule, strides) = gradients[0], ctx.how
            if is_batched(outer):  # each of its gradients has the shape of `outer`
                ones = torch.ones(outer.shape, dtype=outer.dtype, device="cpu")
                return outer * drop(ones, rule, strides), None, None
            return Dropout.apply(outer, rule, strides), None, None

    return Dropout


def drop(tensor: Any, rule: Rule, strides: Any = None) -> Any:
    """A copy of `tensor` (float32 or bfloat16, any shape) with elements dropped by their position in memory.

    `strides`: of the result, without gaps or overlaps. Default: those of torch.empty_like.
    """
    import torch

    result = torch.empty_like(tensor) if strides is None else tensor.new_empty_strided(tensor.shape, strides)
    if tensor.stride() != result.stride():
        tensor = result.copy_(tensor)
    kernel = getattr(library.library(), _KERNELS[str(result.dtype)])
    kernel(tensor.data_ptr(), result.data_ptr(), result.numel(), rule.seed, rule.threshold, rule.scale)
    return result
