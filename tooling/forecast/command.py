"""`./inv plan-cluster`: how long a job takes on N nodes, and how many are worth it, as a table or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.forecast import published
from tooling.forecast import request as cluster_plan
from tooling.forecast.estimate import Estimate
from tooling.forecast.fit import fit
from tooling.forecast.request import Plan, Request
from tooling.forecast.step import predict


def run(request: Request, as_json: bool, say: Say) -> None:
    """Prints the answer. Raises UsageError."""
    plan = cluster_plan.make(request)
    if as_json:
        sys.stdout.write(json.dumps(cluster_plan.document(request, plan), indent=2) + "\n")
        return
    _console().print(table(request, plan))
    print(advice(request, plan))
    for warning in plan.warnings:
        say(f"warning: {warning}")


def check(as_json: bool) -> None:
    """Prints the predictions for the jobs whose times guides have published, beside these times."""
    found = compare()
    if as_json:
        sys.stdout.write(json.dumps({"rows": found}, indent=2) + "\n")
        return
    names = ("job", "nodes", "published", "predicted", "nine in ten", "off by", "from 1 and 2 nodes", "off by")
    shown = Table(*names, box=None, padding=(0, 2, 0, 0))
    for row in found:
        interval = f"{duration(row['low'])} to {duration(row['high'])}"
        times = (duration(row["published"]), duration(row["predicted"]), interval)
        shown.add_row(row["job"], str(row["nodes"]), *times, f"{row['off_by']:+.1%}", *_fitted(row))
    _console().print(shown)
    print("Fed with one node's published time and the network. Assumed:")
    for line in dict.fromkeys(line for one in published.JOBS for line in one.assumed):
        print(f"- {line}")


def compare() -> list[dict[str, Any]]:
    """A row for each published time on several nodes. `fitted`: predicted with that on two nodes known too."""
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
                on_two = Estimate.within(one.times[2], cluster_plan.SPEED_SPREAD)
                fitted = predict(job, nodes, fit(job, 2, on_two, inputs)).seconds.value
                row |= {"fitted": round(fitted), "fitted_off_by": round(fitted / seconds - 1, 4)}
            rows.append(row)
    return rows


def _fitted(row: Mapping[str, Any]) -> tuple[str, str]:
    return (duration(row["fitted"]), f"{row['fitted_off_by']:+.1%}") if "fitted" in row else ("", "")


def nodes_of(text: str) -> tuple[int, ...]:
    """`1,2,4`. Raises UsageError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--nodes is {text!r}, expected numbers with commas between them: 1,2,4,8") from None


def table(request: Request, plan: Plan) -> Table:
    """One row for each number of nodes."""
    title = (
        f"{plan.model.name}, {request.samples:,} samples x {request.epochs:g} epochs, batches of "
        f"{request.batch_size} x {request.length} tokens, {plan.job.gradient_bytes / 1e6:,.0f} MB of gradients"
    )
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    shown.add_column("nodes", justify="right", no_wrap=True)
    for name in ("time", "nine in ten", "speed-up", "efficiency", "comm.", "waiting", "node-hours", "batch"):
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
    """The recommendation in a sentence."""
    wanted = f"{request.efficiency:.0%}"
    if plan.recommended is None:
        return f"None of these numbers of nodes works at {wanted} of one node's efficiency: take fewer."
    chosen = next(row for row in plan.rows if row.nodes == plan.recommended)
    text = f"Worth it: {chosen.nodes} nodes" if chosen.nodes > 1 else "Worth it: 1 node"
    text += f", the most that work at {wanted} of one node's efficiency"
    unsure = [
        str(row.nodes)
        for row in plan.rows
        if row.nodes > 1 and row.efficiency.low < request.efficiency <= row.efficiency.high
    ]
    return (
        f"{text}; within the error bars it may be otherwise with {' or '.join(unsure)}." if unsure else f"{text}."
    )


def duration(seconds: float) -> str:
    """`3 h 51 min`, `4 min 39 s`, `46 s`."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a file gets unfolded lines
    return console
