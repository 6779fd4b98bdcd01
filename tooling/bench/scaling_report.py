"""What a measurement of scaling says: rows, the prediction from 1 and 2 nodes, a table. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tooling.forecast.estimate import Estimate
from tooling.forecast.inputs import overlap
from tooling.forecast.step import NINE_TENTHS, Inputs, Job, fit, predict

Measured = Mapping[str, Any]
Document = Mapping[str, Any]

# Of a step with whom nobody exchanges anything.
APART = "none"
# A node that computes uses all of its time, but for starts and stops.
BUSY = 0.85
# DDP copies gradients into its buckets and back and divides them, and nodes that stand still keep others waiting:
# next to what an all_reduce alone takes that is little on a whole node, a multiple on a part of a core.
COST = Estimate(1, 0.5, 4)
FITTED_ON = 2


def document(measured: Measured, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One document from what the image measured."""
    phases = measured["phases"]
    kept = ("pin", "torch", "cpu", "ranks_per_node", "batch", "length", "gradient_bytes", "embedding_bytes")
    return {
        **facts,
        **{key: measured[key] for key in kept},
        "dtype": "float32",
        "scaling": "strong, with a fixed batch of each rank",
        "ratio": {"wanted": measured["ratio"], "seen": ratios(measured)},
        "rows": rows(measured),
        "predicted": predictions(measured, facts["cores_of_each_node"]),
        "all_reduce": [
            {
                "nodes": phase["nodes"],
                "backend": phase["backend"],
                "bytes": one["bytes"],
                "seconds": median(one["seconds"]),
            }
            for phase in phases
            for one in phase["all_reduce"]
        ],
        "environment": measured["environment"],
    }


def rows(measured: Measured) -> list[dict[str, Any]]:
    """A row for each phase. `apart`: the same nodes at once, each for itself, which shows the machine's limits.

    An efficiency is the median of the rounds' own ratios: what slows a whole round does not count.
    """
    alone = _phase(measured, 1, None)["seconds"]
    found = []
    for phase in measured["phases"]:
        seconds = median(phase["seconds"])
        nodes = phase["nodes"]
        apart = _phase(measured, nodes, None)["seconds"]
        found.append(
            {
                "nodes": nodes,
                "backend": phase["backend"] or APART,
                "samples_per_second": round(_samples(measured, nodes) / seconds, 3),
                "efficiency": round(1 / median(_relative(phase["seconds"], alone)), 4),
                "efficiency_to_apart": round(1 / median(_relative(phase["seconds"], apart)), 4),
                "step_seconds": seconds,
                "step_seconds_rounds": [float(f"{one:.4g}") for one in phase["seconds"]],
                "rounds": len(phase["seconds"]),
                "cpu_share": median(phase["cpu_share"]),
                "throttled_share": median(phase["throttled_share"]),
            }
        )
    return found


def ratios(measured: Measured) -> dict[str, float]:
    """By backend: the all_reduce of all gradients between two nodes, to computing on one."""
    return {
        phase["backend"]: round(
            _all_reduce(phase, measured["gradient_bytes"]) / median(_phase(measured, 1, None)["seconds"]), 4
        )
        for phase in measured["phases"]
        if phase["nodes"] == FITTED_ON and phase["backend"]
    }


def predictions(measured: Measured, cores: float) -> list[dict[str, Any]]:
    """For each backend and more than two nodes, from what one and two did."""
    found = []
    for phase in measured["phases"]:
        if phase["nodes"] != FITTED_ON or not phase["backend"]:
            continue
        job, inputs = fitted(measured, phase, cores)
        for nodes in sorted({one["nodes"] for one in measured["phases"]} - {1, FITTED_ON}):
            one = predict(job, nodes, inputs)
            samples = job.samples
            found.append(
                {
                    "nodes": nodes,
                    "backend": phase["backend"],
                    "samples_per_second": round(samples / one.seconds.value, 3),
                    "samples_per_second_interval": [
                        round(samples / one.seconds.high, 3),
                        round(samples / one.seconds.low, 3),
                    ],
                    "efficiency": round(one.efficiency.value, 4),
                    "efficiency_interval": [round(one.efficiency.low, 4), round(one.efficiency.high, 4)],
                }
            )
    return found


def fitted(measured: Measured, phase: Mapping[str, Any], cores: float) -> tuple[Job, Inputs]:
    """The measured step as a job, and inputs: link from two nodes' all_reduces alone, cost from their step."""
    batch, ranks = measured["batch"], measured["ranks_per_node"]
    size = measured["gradient_bytes"]
    most = max(one["nodes"] for one in measured["phases"])
    steps = 1000
    job = Job(
        samples=batch * ranks * math.lcm(*range(1, most + 1)) * steps,
        epochs=1,
        batch_size=batch,
        gradient_bytes=size,
        last_bytes=measured["embedding_bytes"],
        ranks_per_node=ranks,
        buckets=measured["buckets"],
    )
    small = min(one["bytes"] for one in phase["all_reduce"])
    latency = _all_reduce(phase, small)
    bandwidth = size / max(1e-9, _all_reduce(phase, size) - latency)
    alone = _phase(measured, 1, None)["seconds"]
    inputs = Inputs(
        samples_per_second=Estimate.exact(batch * ranks / median(alone)),
        bytes_per_second=Estimate.within(bandwidth, 0.2),
        latency_seconds=Estimate.factor(latency, 2),
        overlap=overlap(cores / ranks),
        cost=COST,
    )
    on_two = _middle(_relative(phase["seconds"], alone)).scaled(median(alone) * job.steps(FITTED_ON))
    time = _middle(alone).scaled(1 / batch / ranks)
    return job, replace(
        fit(job, FITTED_ON, on_two, inputs),
        samples_per_second=Estimate(1 / time.value, 1 / time.high, 1 / time.low),
    )


def _middle(values: Sequence[float]) -> Estimate:
    """The median, with the error bars that it has as the middle of so many values."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values) * 1.4826  # of a normal distribution's
    half = NINE_TENTHS * 1.2533 * deviation / math.sqrt(len(values))
    return Estimate(middle, max(middle / 2, middle - half), middle + half)


def _relative(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Each round's to the same round's."""
    return [value / other for value, other in zip(values, others, strict=True)]


def _phase(measured: Measured, nodes: int, backend: str | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        one for one in measured["phases"] if (one["nodes"], one["backend"]) == (nodes, backend)
    )
    return found


def _all_reduce(phase: Mapping[str, Any], size: int) -> float:
    return float(median(next(one["seconds"] for one in phase["all_reduce"] if one["bytes"] == size)))


def _samples(measured: Measured, nodes: int) -> int:
    """Of one step of all nodes."""
    return int(measured["batch"] * measured["ranks_per_node"] * nodes)


def table(found: Document) -> RenderableType:
    """Measured and predicted, one row for each number of nodes and backend."""
    predicted = {(one["nodes"], one["backend"]): one for one in found["predicted"]}
    shown = Table(title=title(found), title_justify="left", box=None, padding=(0, 2, 0, 0))
    shown.add_column("nodes", justify="right")
    shown.add_column("exchange", no_wrap=True)
    for name in ("samples/s", "step", "efficiency", "to apart", "predicted"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in found["rows"]:
        expected = predicted.get((row["nodes"], row["backend"]))
        shown.add_row(
            str(row["nodes"]),
            row["backend"],
            f"{row['samples_per_second']:.1f}",
            f"{row['step_seconds'] * 1e3:.0f} ms",
            f"{row['efficiency']:.0%}",
            f"{row['efficiency_to_apart']:.0%}" if row["backend"] != APART else "",
            _interval(expected["efficiency"], expected["efficiency_interval"]) if expected else "",
        )
    return Group(shown, *(Text(line) for line in _remarks(found)))


def _remarks(found: Document) -> list[str]:
    """What the rows are to be read with."""
    seen = ", ".join(f"{backend} {value:.2f}" for backend, value in found["ratio"]["seen"].items())
    lines = [
        f"ratio: all_reduce of {found['gradient_bytes'] / 1e6:.0f} MB between two nodes takes of computing: "
        f"{seen or 'not measured'} (wanted: {found['ratio']['wanted']:.2f})",
        "apart: as many nodes at once, each for itself; predicted: from 1 and 2 nodes",
    ]
    each = found["cores_of_each_node"]
    if found["quota_period_us"]:
        lines.append(
            f"cores: {each:g} of each node, by a quota in periods of {found['quota_period_us'] / 1000:g} ms"
        )
    got = min(row["cpu_share"] for row in found["rows"] if row["backend"] == APART)
    if got < BUSY * min(1.0, each):
        lines.append(
            f"the machine was busy: a node that wanted {min(1.0, each):g} of a core got {got:.2f}; measure again "
            "when it is not, or with less (--cores)"
        )
    return lines


def title(found: Document) -> str:
    """What was trained."""
    parameters = found["gradient_bytes"] / 4e6
    return (
        f"an encoder of {parameters:.0f} M parameters, fp32, {found['batch']} x {found['length']} tokens of each "
        "node and step"
    )


def _interval(value: float, ends: Sequence[float]) -> str:
    return f"{value:.0%} ({ends[0]:.0%} to {ends[1]:.0%})"
