"""What a measurement of scaling says: rows, the prediction from 1 and 2 nodes, a table. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tooling.scaling.estimate import Estimate
from tooling.scaling.fit import NINE_TENTHS, fit
from tooling.scaling.step import JITTER, OVERLAP, Inputs, Job, predict

Measured = Mapping[str, Any]
Document = Mapping[str, Any]

# Of a step with whom nobody exchanges anything.
APART = "none"
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
        "predicted": predictions(measured),
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
    """A row for each phase. `apart`: the same nodes at once, each for itself, which shows the machine's limits."""
    alone = _seconds(measured, 1, None)
    found = []
    for phase in measured["phases"]:
        seconds = median(phase["seconds"])
        nodes = phase["nodes"]
        apart = _seconds(measured, nodes, None)
        found.append(
            {
                "nodes": nodes,
                "backend": phase["backend"] or APART,
                "samples_per_second": round(_samples(measured, nodes) / seconds, 3),
                "efficiency": round(alone / seconds, 4),
                "efficiency_to_apart": round(apart / seconds, 4),
                "step_seconds": seconds,
                "step_seconds_range": [min(phase["seconds"]), max(phase["seconds"])],
                "rounds": len(phase["seconds"]),
                "cpu_share": median(phase["cpu_share"]),
                "throttled_share": median(phase["throttled_share"]),
            }
        )
    return found


def ratios(measured: Measured) -> dict[str, float]:
    """By backend: the all_reduce of all gradients between two nodes, to computing on one."""
    return {
        phase["backend"]: round(_all_reduce(phase, measured["gradient_bytes"]) / _seconds(measured, 1, None), 4)
        for phase in measured["phases"]
        if phase["nodes"] == FITTED_ON and phase["backend"]
    }


def predictions(measured: Measured) -> list[dict[str, Any]]:
    """For each backend and more than two nodes, from what one and two did."""
    found = []
    for phase in measured["phases"]:
        if phase["nodes"] != FITTED_ON or not phase["backend"]:
            continue
        job, inputs = fitted(measured, phase)
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


def fitted(measured: Measured, phase: Mapping[str, Any]) -> tuple[Job, Inputs]:
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
    alone = next(one for one in measured["phases"] if one["nodes"] == 1 and not one["backend"])
    inputs = Inputs(
        samples_per_second=_rate(alone["seconds"], batch * ranks),
        bytes_per_second=Estimate.within(bandwidth, 0.2),
        latency_seconds=Estimate.factor(latency, 2),
        overlap=OVERLAP,
        jitter=JITTER,
    )
    on_two = _middle(phase["seconds"]).scaled(job.steps(FITTED_ON))
    return job, fit(job, FITTED_ON, on_two, inputs)


def _middle(values: Sequence[float]) -> Estimate:
    """The median, with the error bars that it has as the middle of so many values."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values) * 1.4826  # of a normal distribution's
    half = NINE_TENTHS * 1.2533 * deviation / math.sqrt(len(values))
    return Estimate(middle, max(middle / 2, middle - half), middle + half)


def _rate(seconds: Sequence[float], samples: float) -> Estimate:
    time = _middle(seconds)
    return Estimate(samples / time.value, samples / time.high, samples / time.low)


def _seconds(measured: Measured, nodes: int, backend: str | None) -> float:
    phase = next(one for one in measured["phases"] if (one["nodes"], one["backend"]) == (nodes, backend))
    return float(median(phase["seconds"]))


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
    shown.add_column("exchange")
    for name in ("samples/s", "step", "efficiency", "to apart", "predicted", "CPU", "stopped"):
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
            f"{row['cpu_share']:.0%}",
            f"{row['throttled_share']:.0%}",
        )
    seen = ", ".join(f"{backend} {value:.2f}" for backend, value in found["ratio"]["seen"].items())
    lines = [
        f"all_reduce of {found['gradient_bytes'] / 1e6:.0f} MB between two nodes to computing: "
        f"{seen or 'not measured'} (wanted {found['ratio']['wanted']:.2f})"
    ]
    if found["quota_period_us"]:
        lines.append(
            f"each node has {found['cores_of_each_node']:g} cores by a quota, in periods of "
            f"{found['quota_period_us'] / 1000:g} ms: stopped is the time in which it is used up"
        )
    return Group(shown, *(Text(line) for line in lines))


def title(found: Document) -> str:
    """What was trained."""
    parameters = found["gradient_bytes"] / 4e6
    return (
        f"an encoder of {parameters:.0f} million parameters, fp32, {found['batch']} samples x {found['length']} "
        "tokens of each node and step"
    )


def _interval(value: float, ends: Sequence[float]) -> str:
    return f"{value:.0%} ({ends[0]:.0%} to {ends[1]:.0%})"
