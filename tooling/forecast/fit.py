"""Corrects a prediction by a measurement on several nodes."""

from __future__ import annotations

import math
from dataclasses import replace

from tooling.forecast.estimate import Estimate, propagate
from tooling.forecast.step import Inputs, Job, seconds

# Half of the width of a normal distribution's middle nine tenths, in standard deviations.
NINE_TENTHS = 1.645
# The measurement tells of what these make together.
_CORRECTED = ("bytes_per_second", "latency_seconds", "overlap", "jitter", "cost")
_SEEN = ("seen_on", "seen_cost")


def fit(job: Job, nodes: int, measured: Estimate, inputs: Inputs) -> Inputs:
    """`inputs` with waiting and communication on `nodes` as `measured`, seconds of the job there, shows them.

    What was measured and what was expected count by their error bars: two normal distributions, multiplied. Noise
    that makes two nodes faster than computing alone takes is not believed: a cost is at least 0.
    """
    estimates = vars(inputs)
    values = {name: estimate.value for name, estimate in estimates.items()} | {"seen_on": 0.0}
    without = seconds(job, nodes, {**values, "cost": 0.0})
    unit = seconds(job, nodes, {**values, "cost": 1.0}) - without
    if unit <= 0:
        return inputs
    costs = {name: estimates[name] for name in _CORRECTED}
    others = {name: estimate for name, estimate in estimates.items() if name not in (*_CORRECTED, *_SEEN)}
    expected = propagate(lambda some: (seconds(job, nodes, {**values, **some}) - without) / unit, costs)
    computing = propagate(lambda some: seconds(job, nodes, {**values, **some, "cost": 0.0}), others)
    seen = (measured.value - without) / unit
    seen_spread = math.hypot(_spread(measured), _spread(computing)) / unit
    expected_spread = _spread(expected)
    spreads = expected_spread**2 + seen_spread**2
    trust = expected_spread**2 / spreads if spreads else 1.0
    cost = max(0.0, expected.value + trust * (seen - expected.value))
    spread = NINE_TENTHS * math.sqrt(trust) * seen_spread
    a_step = unit / job.steps(nodes)
    found = Estimate(cost, max(0.0, cost - spread), cost + spread).scaled(a_step)
    return replace(inputs, seen_on=Estimate.exact(nodes), seen_cost=found)


def _spread(estimate: Estimate) -> float:
    """As a standard deviation."""
    return (estimate.high - estimate.low) / 2 / NINE_TENTHS
