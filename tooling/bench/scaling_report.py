"""The report of `./inv bench scaling`: rows, the prediction from 1 and 2 nodes, and a table. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cpu_train_stack.bench.cases import digits
from tooling.basis.console import plain_table
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.inputs import overlap
from tooling.bench.forecast.step import NINE_TENTHS, ForecastJob, Inputs, fit, predict
from tooling.bench.output import Document

Measured = Mapping[str, Any]

# The "backend" of steps without an exchange of gradients.
APART = "none"
# A node that gets less of its processor time than this share competes with other programs.
BUSY = 0.85
# The cost of the exchange, compared with the all_reduce alone. DDP also copies gradients into its buckets and back
# and divides them, and nodes wait for nodes that are throttled: little on a complete node, several times the
# all_reduce on a part of a core.
COST = Estimate(1, 0.5, 4)
FITTED_ON = 2


def document(measured: Measured, facts: Mapping[str, Any]) -> dict[str, Any]:
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
    """A row for each phase.

    An efficiency is the median of the ratios of all rounds: a slow round has no effect. `efficiency_to_apart`
    compares with the same nodes without an exchange of gradients, which shows the limits of the machine.
    """
    alone = _apart(measured, 1)["seconds"]
    result = []
    for phase in measured["phases"]:
        seconds = median(phase["seconds"])
        nodes = phase["nodes"]
        apart = _apart(measured, nodes)["seconds"]
        result.append(
            {
                "nodes": nodes,
                "backend": phase["backend"] or APART,
                "samples_per_second": round(_samples(measured, nodes) / seconds, 3),
                "efficiency": round(1 / median(_relative(phase["seconds"], alone)), 4),
                "efficiency_to_apart": round(1 / median(_relative(phase["seconds"], apart)), 4),
                "step_seconds": seconds,
                "step_seconds_rounds": list(map(digits, phase["seconds"])),
                "rounds": len(phase["seconds"]),
                "cpu_share": median(phase["cpu_share"]),
                "throttled_share": median(phase["throttled_share"]),
            }
        )
    return result


def ratios(measured: Measured) -> dict[str, float]:
    """For each backend: the time to all_reduce the gradients between two nodes, to the time of a step on one."""
    return {
        phase["backend"]: round(
            _all_reduce(phase, measured["gradient_bytes"]) / median(_apart(measured, 1)["seconds"]), 4
        )
        for phase in measured["phases"]
        if phase["nodes"] == FITTED_ON and phase["backend"]
    }


def predictions(measured: Measured, cores: float) -> list[dict[str, Any]]:
    """For each backend and each number above two nodes: the prediction from one and two nodes."""
    result = []
    for phase in measured["phases"]:
        if phase["nodes"] != FITTED_ON or not phase["backend"]:
            continue
        job, inputs = fitted(measured, phase, cores)
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


def fitted(measured: Measured, phase: Mapping[str, Any], cores: float) -> tuple[ForecastJob, Inputs]:
    """A job of such steps, and its inputs: the link and the cost come from two nodes."""
    batch, ranks = measured["batch"], measured["ranks_per_node"]
    size = measured["gradient_bytes"]
    most = max(one["nodes"] for one in measured["phases"])
    steps = 1000
    job = ForecastJob(
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
    alone = _apart(measured, 1)["seconds"]
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
    """The median, with its error bars for this number of values."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values) * 1.4826  # as if normally distributed
    half = NINE_TENTHS * 1.2533 * deviation / math.sqrt(len(values))
    return Estimate(middle, max(middle / 2, middle - half), middle + half)


def _relative(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of each round."""
    return [value / other for value, other in zip(values, others, strict=True)]


def _apart(measured: Measured, nodes: int) -> Mapping[str, Any]:
    """The phase with this number of nodes and no exchange of gradients."""
    result: Mapping[str, Any] = next(
        phase for phase in measured["phases"] if (phase["nodes"], phase["backend"]) == (nodes, None)
    )
    return result


def _all_reduce(phase: Mapping[str, Any], size: int) -> float:
    return float(median(next(one["seconds"] for one in phase["all_reduce"] if one["bytes"] == size)))


def _samples(measured: Measured, nodes: int) -> int:
    """The samples of one step on all nodes."""
    return int(measured["batch"] * measured["ranks_per_node"] * nodes)


def table(document: Document) -> RenderableType:
    """The measurements and predictions, a row for each number of nodes and backend."""
    predicted = {(one["nodes"], one["backend"]): one for one in document["predicted"]}
    columns = ("nodes", "exchange", "samples/s", "step", "efficiency", "vs. none", "predicted")
    shown = plain_table(columns, ("exchange",), title(document), gap=2)
    for row in document["rows"]:
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
    return Group(shown, *(Text(line) for line in _remarks(document)))


def _remarks(document: Document) -> list[str]:
    """The explanations below the table."""
    seen = ", ".join(f"{backend} {value:.2f}" for backend, value in document["ratio"]["seen"].items())
    lines = [
        f"all_reduce of {document['gradient_bytes'] / 1e6:.0f} MB between two nodes / step of one node: "
        f"{seen or 'not measured'} (wanted: {document['ratio']['wanted']:.2f})",
        "none, vs. none: all nodes train at the same time, without exchanging gradients",
        "predicted: efficiency, from 1 and 2 nodes",
    ]
    cores = document["cores_of_each_node"]
    if document["quota_period_us"]:
        lines.append(
            f"cores: {cores:g} of each node, by a quota in periods of {document['quota_period_us'] / 1000:g} ms"
        )
    used = min(row["cpu_share"] for row in document["rows"] if row["backend"] == APART)
    if used < BUSY * min(1.0, cores):
        lines.append(
            f"the machine was busy: a node with {min(1.0, cores):g} of a core got {used:.2f}; stop other "
            "programs, or lower --cores"
        )
    return lines


def title(document: Document) -> str:
    """The model and the batch."""
    parameters = document["gradient_bytes"] / 4e6
    return (
        f"encoder of {parameters:.0f} M parameters, fp32, {document['batch']} x {document['length']} tokens per "
        "node and step"
    )


def _interval(value: float, ends: Sequence[float]) -> str:
    return f"{value:.0%} ({ends[0]:.0%} to {ends[1]:.0%})"
