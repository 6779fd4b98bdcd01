"""The speed of training, and the line that reports it. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
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


def steps_within(seconds: float, durations: Sequence[float]) -> int:
    """How many steps take about `seconds`, from 1 to 100. `durations`: of a step, on each rank."""
    return max(1, min(100, int(seconds / max(*durations, 1e-6))))


class Speed:
    """Seconds and rows of training steps, without evaluation and saving.

    The steady rate also excludes the first five steps, in which memory is allocated and kernels are generated; of
    fewer than eleven steps, it excludes only the first.
    """

    WARM_UP = 5

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._steps: list[tuple[float, int]] = []

    def add(self, seconds: float, rows: int) -> None:
        """Add an optimizer step. `rows`: on this rank; the number is the same on all ranks."""
        self._steps.append((seconds, rows * self._world_size))

    def rate(self, last: int | None = None) -> float | None:
        """Rows per second of all ranks: the steady rate, or over the `last` steps. None without such a step."""
        if last is not None:
            steps = self._steps[-last:]
        else:
            steps = self._steps[self.WARM_UP if len(self._steps) > 2 * self.WARM_UP else 1 :]
        seconds = sum(duration for duration, _ in steps)
        return sum(rows for _, rows in steps) / seconds if seconds > 0 else None
