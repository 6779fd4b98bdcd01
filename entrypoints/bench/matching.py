"""Which numbers of nodes `bench scaling` compares, and which batch it gives them. Pure and torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: `offset`, and `a_sample` for each sample."""

    offset: float
    a_sample: float

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> StepTime:
        """From two batches and their seconds. Noise that makes the larger one faster counts as next to nothing."""
        a_sample = max(1e-6, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - a_sample * small[0]), a_sample)

    def batch(self, ratio: float, communication: float) -> int:
        """Samples that take `communication` / `ratio` seconds; at least one."""
        return max(1, round((communication / ratio - self.offset) / self.a_sample))


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`."""
    return tuple(1 << power for power in range(most.bit_length()))
