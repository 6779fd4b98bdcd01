"""Figures with error bars, and how those of several inputs add up."""

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
        """`value`, up to `share` of it more or less."""
        return cls(value, value * (1 - share), value * (1 + share))

    @classmethod
    def factor(cls, value: float, times: float) -> Estimate:
        """`value`, up to `times` as much or as little."""
        return cls(value, value / times, value * times)

    def scaled(self, by: float) -> Estimate:
        """The same in another unit. `by` is positive."""
        return Estimate(self.value * by, self.low * by, self.high * by)


def propagate(function: Callable[[Mapping[str, float]], float], inputs: Mapping[str, Estimate]) -> Estimate:
    """`function` of all inputs' values, with error bars.

    Each input in turn is put to both of its ends, the others at their values. What lowers the result and what
    raises it are added up apart, as the root of the sum of squares: right to first order for independent inputs.
    """
    values = {name: estimate.value for name, estimate in inputs.items()}
    middle = function(values)
    below = above = 0.0
    for name, estimate in inputs.items():
        changes = [function({**values, name: end}) - middle for end in {estimate.low, estimate.high}]
        below += min(0.0, *changes) ** 2
        above += max(0.0, *changes) ** 2
    return Estimate(middle, middle - math.sqrt(below), middle + math.sqrt(above))
