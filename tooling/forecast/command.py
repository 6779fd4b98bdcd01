"""`./inv plan-cluster`: predicts the time of a job on N nodes, and recommends a number of nodes."""

import json
import sys

from rich.table import Table

from tooling.basis.console import console
from tooling.basis.say import Say
from tooling.forecast.estimate import Estimate
from tooling.forecast.request import Plan, Request, document, make

TABLE_WIDTH = 160


def run(request: Request, as_json: bool, say: Say) -> None:
    """Print the forecast. Raises UsageError."""
    plan = make(request)
    if as_json:
        sys.stdout.write(json.dumps(document(request, plan), indent=2) + "\n")
        return
    console(TABLE_WIDTH).print(table(request, plan))
    print(advice(request, plan))
    for warning in plan.warnings:
        say(f"warning: {warning}")


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
