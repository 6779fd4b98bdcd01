"""The prediction of `./inv bench scaling` for several nodes, from its measurements on one and two nodes. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.inputs import overlap
from tooling.bench.forecast.step import NINE_TENTHS, ForecastJob, Inputs, fit, predict

Measured = Mapping[str, Any]

# The cost of the exchange, compared with the all_reduce alone. DDP also copies gradients into its buckets and back
# and divides them, and nodes wait for nodes that are throttled: little on a complete node, several times the
# all_reduce on a part of a core.
COST = Estimate(1, 0.5, 4)
FITTED_ON = 2


def predictions(measured: Measured, cores: float) -> list[dict[str, Any]]:
    """For each backend and each number above two nodes: the prediction from one and two nodes."""
    result = []
    for phase in measured["phases"]:
        if phase["nodes"] != FITTED_ON or not phase["backend"]:
            continue
        job, inputs = _fitted(measured, phase, cores)
        for nodes in sorted({phase["nodes"] for phase in measured["phases"]} - {1, FITTED_ON}):
            prediction = predict(job, nodes, inputs)
            time, efficiency = prediction.seconds, prediction.efficiency
            result.append(
                {
                    "nodes": nodes,
                    "backend": phase["backend"],
                    "samples_per_second": round(job.samples / time.value, 3),
                    "samples_per_second_interval": [round(job.samples / end, 3) for end in (time.high, time.low)],
                    "efficiency": round(efficiency.value, 4),
                    "efficiency_interval": [round(end, 4) for end in (efficiency.low, efficiency.high)],
                }
            )
    return result


def _fitted(measured: Measured, phase: Mapping[str, Any], cores: float) -> tuple[ForecastJob, Inputs]:
    """A job of such steps, and its inputs: the link and the cost come from two nodes."""
    batch, ranks = measured["batch"], measured["ranks_per_node"]
    size = measured["gradient_bytes"]
    most = max(one["nodes"] for one in measured["phases"])
    job = ForecastJob(
        samples=batch * ranks * math.lcm(*range(1, most + 1)) * 1000,
        epochs=1,
        batch_size=batch,
        gradient_bytes=size,
        last_bytes=measured["embedding_bytes"],
        ranks_per_node=ranks,
        buckets=measured["buckets"],
    )
    latency = all_reduce(phase, min(one["bytes"] for one in phase["all_reduce"]))
    bandwidth = size / max(1e-9, all_reduce(phase, size) - latency)
    alone = apart(measured, 1)
    inputs = Inputs(
        samples_per_second=Estimate.exact(batch * ranks / median(alone)),
        bytes_per_second=Estimate.within(bandwidth, 0.2),
        latency_seconds=Estimate.factor(latency, 2),
        overlap=overlap(cores / ranks),
        cost=COST,
    )
    on_two = _middle(relative(phase["seconds"], alone)).scaled(median(alone) * job.steps(FITTED_ON))
    time = _middle(alone).scaled(1 / batch / ranks)
    return job, replace(
        fit(job, FITTED_ON, on_two, inputs),
        samples_per_second=Estimate(1 / time.value, 1 / time.high, 1 / time.low),
    )


def _middle(values: Sequence[float]) -> Estimate:
    """The median, with its error bars for this number of values."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values) * 1.4826  # as if normally distributed
    half = NINE_TENTHS * 1.2533 * deviation / math.sqrt(len(values))
    return Estimate(middle, max(middle / 2, middle - half), middle + half)


def relative(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of each round."""
    return [value / other for value, other in zip(values, others, strict=True)]


def apart(measured: Measured, nodes: int) -> Sequence[float]:
    """The seconds of each round of a step on this number of nodes, without an exchange of gradients."""
    result: Sequence[float] = next(
        phase["seconds"] for phase in measured["phases"] if (phase["nodes"], phase["backend"]) == (nodes, None)
    )
    return result


def all_reduce(phase: Mapping[str, Any], size: int) -> float:
    """The median seconds of a phase's separate all_reduce of this size."""
    return float(median(next(one["seconds"] for one in phase["all_reduce"] if one["bytes"] == size)))
