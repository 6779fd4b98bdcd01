"""The numbers of warm-up steps, measured steps and profiled steps that fit into the time budget. Pure."""

from __future__ import annotations

# In the first two steps, memory is allocated and kernels are selected.
FEWEST_WARM_UP, MOST_WARM_UP = 2, 5
WARM_UP_SHARE = 0.3
FEWEST_STEPS, MOST_STEPS = 2, 500
# The share of the budget that the measured steps must reach.
ENOUGH = 0.8
PROFILED_SECONDS, MOST_PROFILED = 3.0, 5


def warm_up(first_seconds: float, budget_seconds: float) -> int:
    """The number of warm-up steps, including the first step, which took `first_seconds`."""
    more = int(WARM_UP_SHARE * budget_seconds / first_seconds)
    return max(FEWEST_WARM_UP, min(MOST_WARM_UP, 1 + more))


def measured(step_seconds: float, budget_seconds: float, steps: int) -> int:
    """The number of measured steps: `steps`, unless that is 0."""
    if steps:
        return steps
    return max(FEWEST_STEPS, min(MOST_STEPS, round(budget_seconds / step_seconds)))


def more(spent_seconds: float, steps: int, budget_seconds: float, fixed: bool) -> int:
    """The number of further measured steps: a slow step at the start may have made the first estimate too low.

    0 if the number of steps is `fixed`.
    """
    if fixed or spent_seconds > ENOUGH * budget_seconds:
        return 0
    return min(MOST_STEPS - steps, max(1, round((budget_seconds - spent_seconds) * steps / spent_seconds)))


def profiled(step_seconds: float) -> int:
    """The number of profiled steps, after the measured steps."""
    return max(1, min(MOST_PROFILED, round(PROFILED_SECONDS / step_seconds)))
