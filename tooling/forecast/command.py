"""`./inv plan-cluster`: predicts the time of a job on N nodes, and recommends a number of nodes."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from tooling.basis.console import console
from tooling.basis.say import Say
from tooling.forecast import published
from tooling.forecast.estimate import Estimate
from tooling.forecast.request import SPEED_SPREAD, Plan, Request, document, make
from tooling.forecast.step import fit, predict

TABLE_WIDTH = 160


def run(request: Request, as_json: bool, say: Say) -> None:
    """Print the forecast. Raises UsageError."""
    if request.published:
        run_published(as_json)
        return
    plan = make(request)
    if as_json:
        sys.stdout.write(json.dumps(document(request, plan), indent=2) + "\n")
        return
    console(TABLE_WIDTH).print(table(request, plan))
    print(advice(request, plan))
    for warning in plan.warnings:
        say(f"warning: {warning}")


def run_published(as_json: bool) -> None:
    """Print predictions for the jobs whose times Intel's and Hugging Face's guides have published."""
    found = compare()
    if as_json:
        sys.stdout.write(json.dumps({"rows": found}, indent=2) + "\n")
        return
    names = (
        "job",
        "nodes",
        "published",
        "predicted from 1 node",
        "90% interval",
        "error",
        "from 1 and 2 nodes",
        "error",
    )
    shown = Table(*names, box=None, padding=(0, 2, 0, 0))
    for row in found:
        interval = f"{duration(row['low'])} to {duration(row['high'])}"
        times = (duration(row["published"]), duration(row["predicted"]), interval)
        shown.add_row(row["job"], str(row["nodes"]), *times, f"{row['off_by']:+.1%}", *_fitted(row))
    console(TABLE_WIDTH).print(shown)
    print("Predicted from the published time of one node and the network. Assumed:")
    for line in dict.fromkeys(line for job in published.JOBS for line in job.assumed):
        print(f"- {line}")


def compare() -> list[dict[str, Any]]:
    """A row for each published time on several nodes. `fitted`: predicted from the times on one and two nodes."""
    rows: list[dict[str, Any]] = []
    for one in published.JOBS:
        job, inputs = one.job(), one.inputs()
        for nodes, seconds in one.times.items():
            if nodes == 1:
                continue
            predicted = predict(job, nodes, inputs).seconds
            row = {
                "job": one.name,
                "nodes": nodes,
                "published": seconds,
                "predicted": round(predicted.value),
                "low": round(predicted.low),
                "high": round(predicted.high),
                "off_by": round(predicted.value / seconds - 1, 4),
            }
            if nodes > 2 and 2 in one.times:
                on_two = Estimate.within(one.times[2], SPEED_SPREAD)
                fitted = predict(job, nodes, fit(job, 2, on_two, inputs)).seconds.value
                row |= {"fitted": round(fitted), "fitted_off_by": round(fitted / seconds - 1, 4)}
            rows.append(row)
    return rows


def _fitted(row: Mapping[str, Any]) -> tuple[str, str]:
    return (duration(row["fitted"]), f"{row['fitted_off_by']:+.1%}") if "fitted" in row else ("", "")


def table(request: Request, plan: Plan) -> Table:
    """A row for each number of nodes."""
    title = (
        f"{plan.model.name}, {request.samples:,} samples x {request.epochs:g} epochs, batches of "
        f"{request.batch_size} x {request.seq_length} tokens, {plan.job.gradient_bytes / 1e6:,.0f} MB of gradients"
    )
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    shown.add_column("nodes", justify="right", no_wrap=True)
    for name in ("time", "90% interval", "speed-up", "efficiency", "comm.", "waiting", "node-hours", "batch"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in plan.rows:
        several = row.nodes > 1
        shown.add_row(
            str(row.nodes),
            duration(row.seconds.value),
            f"{duration(row.seconds.low)} to {duration(row.seconds.high)}",
            f"{row.speedup.value:.2f}x" if several else "",
            _percent(row.efficiency) if several else "",
            f"{row.communication_share:.0%}" if several else "",
            f"{row.waiting_share:.0%}" if several else "",
            f"{row.node_hours:.3g}",
            str(plan.job.batch_size * plan.job.ranks_per_node * row.nodes),
        )
    return shown


def advice(request: Request, plan: Plan) -> str:
    """The recommendation, in one or two sentences."""
    wanted = f"{request.efficiency:.0%}"
    if plan.recommended is None:
        return f"No number of nodes in this table has an efficiency of {wanted} or more: use fewer nodes."
    text = f"Recommended: {plan.recommended} node{'s' if plan.recommended > 1 else ''}"
    text += f", the largest number with an efficiency of {wanted} or more."
    unsure = [
        str(row.nodes)
        for row in plan.rows
        if row.nodes > 1 and row.efficiency.low < request.efficiency <= row.efficiency.high
    ]
    return (
        f"{text} Within the error bars, the answer may differ for {' or '.join(unsure)} nodes." if unsure else text
    )


def duration(seconds: float) -> str:
    """`3 h 51 min`, `4 min 39 s`, `46 s`."""
    rounded = round(max(0.0, seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    minutes = round(rounded / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"
