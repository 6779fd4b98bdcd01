"""Dropout whose kernel generates its own random numbers (kernels/dropout.cpp).

torch on a CPU draws the numbers one by one, writes a tensor of them and reads it twice, which takes a seventh of
the time of BERT's training step. Here, the number of an element follows from its position and one seed, which is
drawn from torch's generator: torch.manual_seed, checkpoints of the generator and activation checkpointing work as
before, and the result does not depend on the number of threads. The masks for a seed differ from torch's.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from cpu_train_stack.operators.transforms import has_level, in_transform, is_compiling

# A random number has 16 bits.
_NUMBERS = 65536
# Below this rate, the error of 16 bits would be up to a hundredth of the rate: torch draws wider numbers.
SMALLEST_RATE = 2**-10
# The registration lasts as long as this object.
_libraries: list[Any] = []


class Described(ctypes.Structure):
    """A rule as in kernels/dropout_rule.hpp."""

    _fields_ = [("seed", ctypes.c_uint64), ("threshold", ctypes.c_uint32), ("scale", ctypes.c_float)]


@dataclass(frozen=True)
class Rule:
    """Drop an element if its number is less than `threshold`, and multiply the other elements by `scale_of` it.

    `seed`: a tensor that holds an integer, as operators in a graph need it, or None if no element is dropped.
    """

    seed: Any
    threshold: int


def scale_of(threshold: int) -> float:
    return 1 / (1 - threshold / _NUMBERS)


def number_of(seed: Any) -> int:
    return 0 if seed is None else int(seed)


def described(seed: Any, threshold: int) -> Described:
    return Described(number_of(seed), threshold, scale_of(threshold))


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
    return Rule(torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None), threshold)


def are_plain(*tensors: Any) -> bool:
    """Whether all are strided tensors in this machine's memory: no subclass, not nested, not inside a transform of
    torch.func, and without a tangent (forward-mode differentiation)."""
    import torch

    if in_transform():
        return False
    if is_compiling():  # torch.compile cannot trace the other checks
        return not has_level() and all(
            type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
            for tensor in tensors
        )
    return all(map(_is_plain, tensors))


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
    from cpu_train_stack.operators.dropout_operator import dropout

    library = torch.library.Library("aten", "IMPL")
    library.impl("dropout", dropout, "AutogradCPU")
    _libraries.append(library)


def is_installed() -> bool:
    """Whether dropout in this process is this project's."""
    return bool(_libraries)
