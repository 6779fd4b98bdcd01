"""`./inv plan-cluster`: predicts the time of a job on N nodes, and recommends a number of nodes."""

import json

from cpu_train_stack.cli.say import say
from tooling.basis.console import console
from tooling.basis.figures import terminal_table
from tooling.bench.forecast.request import ForecastPlan, ForecastRequest, document, make

TABLE_WIDTH = 160
COLUMNS = {
    "nodes": "{nodes}",
    "time": "{seconds[value]:time}",
    "90% interval": "{seconds[low]:time} to {seconds[high]:time}",
    "speed-up": "{speedup[value]:x}",
    "efficiency": "{efficiency[value]:%} ({efficiency[low]:%} to {efficiency[high]:%})",
    "comm.": "{communication_share:%}",
    "waiting": "{waiting_share:%}",
    "node-hours": "{node_hours}",
    "batch": "{global_batch}",
}


def run(request: ForecastRequest, as_json: bool) -> None:
    """Print the forecast. Raises UsageError."""
    plan = make(request)
    found = document(request, plan)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    title = (
        f"{plan.model.name}, {request.samples:,} samples x {request.epochs:g} epochs, batches of "
        f"{request.batch_size} x {request.seq_length} tokens, {plan.job.gradient_bytes / 1e6:,.0f} MB of gradients"
    )
    console(TABLE_WIDTH).print(terminal_table(COLUMNS, found["rows"], title, gap=2))
    print(advice(request, plan))
    for warning in plan.warnings:
        say(f"warning: {warning}")


def advice(request: ForecastRequest, plan: ForecastPlan) -> str:
    """The recommendation, in one or two sentences."""
    wanted = f"{request.efficiency:.0%}"
    if plan.recommended is None:
        return f"No number of nodes in this table has an efficiency of {wanted} or more: use fewer nodes."
    nodes = f"{plan.recommended} node{'s' if plan.recommended > 1 else ''}"
    text = f"Recommended: {nodes}, the largest number with an efficiency of {wanted} or more."
    unsure = [
        str(row.nodes)
        for row in plan.rows
        if row.nodes > 1 and row.efficiency.low < request.efficiency <= row.efficiency.high
    ]
    if unsure:
        text += f" Within the error bars, {' or '.join(unsure)} nodes may be above or below {wanted}."
    return text
