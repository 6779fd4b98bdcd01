"""Values with error bars, and their propagation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A value that lies between `low` and `high` nine times in ten."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not between {self.low} and {self.high}")

    @classmethod
    def exact(cls, value: float) -> Estimate:
        return cls(value, value, value)

    @classmethod
    def within(cls, value: float, share: float) -> Estimate:
        """`value`, plus or minus `share` of it."""
        return cls(value, value * (1 - share), value * (1 + share))

    @classmethod
    def factor(cls, value: float, times: float) -> Estimate:
        """`value`, between a `times`-th and `times` of it."""
        return cls(value, value / times, value * times)

    def scaled(self, by: float) -> Estimate:
        """The estimate in another unit. `by` is positive."""
        return Estimate(self.value * by, self.low * by, self.high * by)


def propagate(function: Callable[[Mapping[str, float]], float], inputs: Mapping[str, Estimate]) -> Estimate:
    """The result of `function`, with error bars.

    Each input in turn is set to both of its ends, with the other inputs at their values. The decreases of the
    result and its increases are summed separately, as the root of the sum of squares. This is correct to first
    order for independent inputs.
    """
    values = {name: estimate.value for name, estimate in inputs.items()}
    middle = function(values)
    below = above = 0.0
    for name, estimate in inputs.items():
        changes = [function({**values, name: end}) - middle for end in {estimate.low, estimate.high}]
        below += min(0.0, *changes) ** 2
        above += max(0.0, *changes) ** 2
    return Estimate(middle, middle - math.sqrt(below), middle + math.sqrt(above))
