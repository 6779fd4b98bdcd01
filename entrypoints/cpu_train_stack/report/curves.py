"""What the job learned and how fast it was, over steps and time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cpu_train_stack.page.blocks import Block, Chart, Curve, Table
from cpu_train_stack.page.texts import number
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.record import Steps
from cpu_train_stack.report import series, summary
from cpu_train_stack.report.series import Interval, Point

# A curve of fewer values shows a dot for each.
_FEW = 60
# A chart of fewer values is a row of a table.
_LEAST = 3


def blocks(job: RecordedJob, found: Sequence[Interval]) -> list[Block]:
    """The charts of `learning` and `speed`. Those with few values are one table."""
    charts = [*learning(job), *speed(job, found)]
    small = [chart for chart in charts if all(len(curve.values) < _LEAST for curve in chart.curves)]
    rows = [
        [chart.title, ", ".join(map(_words, chart.curves[0].steps, chart.curves[0].values))] for chart in small
    ]
    shown: list[Block] = [chart for chart in charts if chart not in small]
    return shown + ([Table("", ["curve", "values"], rows)] if rows else [])


def _words(step: float, value: float | None) -> str:
    return f"{number(value)} at step {step:,.0f}"


def learning(job: RecordedJob) -> list[Chart]:
    """Loss, metrics, learning rate and gradient norm."""
    begin = summary.began(job)
    losses = series.mean_losses({number: rank.steps for number, rank in job.ranks.items()})
    loss = [*curves("logged", logged(job, "loss"), begin), *curves("each step", losses, begin, "thin")]
    names = [name for name in summary.metrics(job) if name != "eval_loss"]
    found = [
        Chart("Training loss", "loss", loss),
        Chart("Evaluation loss", "loss", curves("evaluation", logged(job, "eval_loss"), begin, "points")),
        *(
            Chart(
                f"Evaluation: {title(name)}", title(name), curves(title(name), logged(job, name), begin, "points")
            )
            for name in names
        ),
        Chart(
            "Learning rate", "learning rate", curves("learning rate", logged(job, "learning_rate"), begin), True
        ),
        Chart("Gradient norm", "norm", curves("gradient norm", logged(job, "grad_norm"), begin)),
    ]
    return [chart for chart in found if chart.curves]


def speed(job: RecordedJob, found: Sequence[Interval]) -> list[Chart]:
    """Throughput of all ranks."""
    begin = summary.began(job)
    charts = [
        Chart("Samples per second", "samples/s", rate(job, found, "samples/s", lambda one: one.rows, begin), True),
        Chart(
            "Useful tokens per second",
            "tokens/s",
            rate(job, found, "tokens/s", lambda one: one.useful, begin),
            True,
            note="without padding",
        ),
    ]
    return [chart for chart in charts if chart.curves]


def rate(
    job: RecordedJob, found: Sequence[Interval], label: str, amount: Callable[[Steps], float], begin: float
) -> list[Curve]:
    """`amount` per second, summed over the ranks. Ranks without a file count like the others."""
    points = []
    for one in found:
        rates = [amount(total) / total.seconds for total in one.ranks.values() if total.seconds > 0]
        if rates:
            points.append(Point(one.step, one.time, sum(rates) / len(rates) * job.world_size))
    return curves(label, points, begin) if any(point.value for point in points) else []


def logged(job: RecordedJob, name: str) -> list[Point]:
    """What Trainer logged under this name."""
    return [
        Point(log.step, log.time, float(log.values[name]))
        for log in job.first.logs
        if isinstance(log.values.get(name), (int, float))
    ]


def curves(label: str, points: Sequence[Point], begin: float, look: str = "line") -> list[Curve]:
    """One curve, or none without points. `begin`: the first start, in seconds since the epoch."""
    if not points:
        return []
    kept = series.extremes(points)
    look = "line" if look == "points" and len(kept) > _FEW else look
    seconds = [round(max(0.0, point.time - begin), 1) for point in kept]
    return [Curve(label, [point.step for point in kept], seconds, [point.value for point in kept], look)]


def title(name: str) -> str:
    """eval_f1_macro -> f1 macro."""
    return name[len("eval_") :].replace("_", " ")
