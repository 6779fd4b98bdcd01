"""How fast training goes, and the line that says so. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def progress_line(step: int, steps: int, logs: dict[str, Any], samples_per_second: float | None) -> str:
    """`step 50/345  loss 0.6100  lr 4.1e-05  44.2 samples/s`"""
    parts = [f"step {step}/{steps}"]
    if "loss" in logs:
        parts.append(f"loss {logs['loss']:.4f}")
    if "learning_rate" in logs:
        parts.append(f"lr {logs['learning_rate']:.1e}")
    if samples_per_second is not None:
        parts.append(f"{samples_per_second:.1f} samples/s")
    return "  ".join(parts)


class Speed:
    """Seconds and samples of training steps alone: evaluation and saving are left out.

    The steady rate leaves out the first steps too, in which memory is allocated and kernels are chosen:
    the first five, or the first alone where there are fewer than eleven steps.
    """

    WARM_UP = 5

    def __init__(self, world_size: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._world_size = world_size
        self._clock = clock
        self._mark = 0.0
        self._rows = 0
        self._steps: list[tuple[float, int]] = []

    def restart(self) -> None:
        """Call before a step, after anything that is not a step."""
        self._mark = self._clock()

    def add(self, rows: int) -> None:
        """Call for each micro-batch with its rows on this rank; all ranks have the same number."""
        self._rows += rows

    def step(self) -> None:
        """Call after each optimizer step."""
        now = self._clock()
        self._steps.append((now - self._mark, self._rows * self._world_size))
        self._mark, self._rows = now, 0

    def rate(self, last: int | None = None) -> float | None:
        """Rows a second over all ranks: steady, or over the last steps. None before there is a steady step."""
        if last is not None:
            steps = self._steps[-last:]
        else:
            steps = self._steps[self.WARM_UP if len(self._steps) > 2 * self.WARM_UP else 1 :]
        seconds = sum(duration for duration, _ in steps)
        return sum(rows for _, rows in steps) / seconds if seconds > 0 else None
