"""A forecast as texts, for the terminal and the page. Pure."""

from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.request import ForecastPlan, ForecastRequest

_COLUMNS = ("nodes", "time", "90% interval", "speed-up", "efficiency", "comm.", "waiting", "node-hours", "batch")


def title(request: ForecastRequest, plan: ForecastPlan) -> str:
    """What is predicted."""
    return (
        f"{plan.model.name}, {request.samples:,} samples x {request.epochs:g} epochs, batches of "
        f"{request.batch_size} x {request.seq_length} tokens, {plan.job.gradient_bytes / 1e6:,.0f} MB of gradients"
    )


def table(plan: ForecastPlan) -> tuple[tuple[str, ...], list[list[str]]]:
    """The names of the columns, and a row for each number of nodes."""
    rows = []
    for row in plan.rows:
        several = row.nodes > 1
        rows.append(
            [
                str(row.nodes),
                duration(row.seconds.value),
                interval(row.seconds),
                f"{row.speedup.value:.2f}x" if several else "",
                _percent(row.efficiency) if several else "",
                f"{row.communication_share:.0%}" if several else "",
                f"{row.waiting_share:.0%}" if several else "",
                f"{row.node_hours:.3g}",
                str(plan.job.batch_size * plan.job.ranks_per_node * row.nodes),
            ]
        )
    return _COLUMNS, rows


def advice(request: ForecastRequest, plan: ForecastPlan) -> str:
    """The recommendation, in one or two sentences."""
    wanted = f"{request.efficiency:.0%}"
    if plan.recommended is None:
        return f"No number of nodes in this table has an efficiency of {wanted} or more: use fewer nodes."
    text = f"Recommended: {nodes(plan.recommended)}"
    text += f", the largest number with an efficiency of {wanted} or more."
    unsure = [
        str(row.nodes)
        for row in plan.rows
        if row.nodes > 1 and row.efficiency.low < request.efficiency <= row.efficiency.high
    ]
    if unsure:
        text += f" Within the error bars, {' or '.join(unsure)} nodes may be above or below {wanted}."
    return text


def nodes(number: int) -> str:
    return f"{number} node{'s' if number > 1 else ''}"


def interval(seconds: Estimate) -> str:
    return f"{duration(seconds.low)} to {duration(seconds.high)}"


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
