"""How dropout's random numbers are drawn: 16 bits an element, from a seed of torch's generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Below this the rate would be off by up to a hundredth of itself: torch's own dropout draws wider numbers.
SMALLEST = 2**-10
_STEPS = 65536


@dataclass(frozen=True)
class Rule:
    """An element is dropped if its number is less than `threshold`; `scale` is one over the rate of the others."""

    seed: int
    threshold: int

    @property
    def scale(self) -> float:
        return 1 / (1 - self.threshold / _STEPS)


def draw(p: float) -> Rule | None:
    """A rule whose rate is within 2**-17 of `p`. None for a rate that 16 bits are too coarse for."""
    import torch

    threshold = round(p * _STEPS)
    if p < SMALLEST or threshold >= _STEPS:
        return None
    return Rule(int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) & (2**64 - 1), threshold)


def plain(*tensors: Any) -> bool:
    """Whether these are tensors in this machine's memory, as they are: no subclass, none of torch.func's."""
    import torch

    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    kinds = (torch.Tensor, torch.nn.Parameter)
    return not (active and active()) and all(type(each) in kinds and each.device.type == "cpu" for each in tensors)
