"""How many steps to run: as many as fit in the time that there is, and fewer of those that do not count. Pure."""

from __future__ import annotations

# In the first steps memory is allocated and kernels are chosen; all of it is there after the second.
FEWEST_WARM_UP, MOST_WARM_UP = 2, 5
WARM_UP_SHARE = 0.3
FEWEST_STEPS, MOST_STEPS = 2, 500
# Of the time that there is.
ENOUGH = 0.8
PROFILED_SECONDS, MOST_PROFILED = 3.0, 5


def warm_up(first_seconds: float, budget_seconds: float) -> int:
    """Steps that do not count, the first one among them, after which this is asked."""
    more = int(WARM_UP_SHARE * budget_seconds / first_seconds)
    return max(FEWEST_WARM_UP, min(MOST_WARM_UP, 1 + more))


def measured(step_seconds: float, budget_seconds: float, asked: int) -> int:
    """Steps that count, `asked` if that is not 0."""
    if asked:
        return asked
    return max(FEWEST_STEPS, min(MOST_STEPS, round(budget_seconds / step_seconds)))


def more(spent_seconds: float, steps: int, budget_seconds: float, asked: int) -> int:
    """Further steps that count: one slow step before them may have made them too few."""
    if asked or spent_seconds > ENOUGH * budget_seconds:
        return 0
    return min(MOST_STEPS - steps, max(1, round((budget_seconds - spent_seconds) * steps / spent_seconds)))


def profiled(step_seconds: float) -> int:
    """Steps that the profiler watches, after those that count."""
    return max(1, min(MOST_PROFILED, round(PROFILED_SECONDS / step_seconds)))
