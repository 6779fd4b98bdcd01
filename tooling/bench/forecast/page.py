"""The page of `./inv plan-cluster --html`: time and cost over the number of nodes, with error bands. Pure."""

from collections.abc import Sequence

from cpu_train_stack.page.blocks import Bar, Bars, Chart, Curve, Facts, Page, Section, Table, Texts, Tile
from tooling.bench.forecast import texts
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.forecast.request import ForecastPlan, ForecastRequest

_HOUR = 3600
_UNITS = ((2 * _HOUR, _HOUR, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))


def page(request: ForecastRequest, plan: ForecastPlan) -> Page:
    verdict = f"Forecast: {plan.model.name} on {min(request.node_counts)} to {max(request.node_counts)} nodes"
    columns, rows = texts.table(plan)
    settings = [(name.replace("_", " "), str(value)) for name, value in vars(request).items() if value]
    return Page(
        title=verdict,
        state="",
        verdict=verdict,
        about=texts.title(request, plan),
        tiles=_tiles(plan),
        notices=[
            Texts("Recommendation", [texts.advice(request, plan)]),
            *(Texts("Warning", [f"{text[:1].upper()}{text[1:]}."], "warning") for text in plan.warnings),
        ],
        sections=[
            Section("forecast", "Forecast", [*_charts(plan), _steps(plan)]),
            Section("numbers", "Numbers", [Table("", columns, rows, range(len(columns)))]),
            Section("assumptions", "Assumptions", [Facts(settings), _inputs(plan)]),
        ],
    )


def _tiles(plan: ForecastPlan) -> list[Tile]:
    row = next((row for row in plan.rows if row.nodes == plan.recommended), None)
    if row is None:
        return []
    return [
        Tile("recommended", texts.nodes(row.nodes), "the most nodes that are efficient"),
        Tile("time", texts.duration(row.seconds.value), texts.interval(row.seconds)),
        Tile("speed-up", f"{row.speedup.value:.2f}x", f"{row.speedup.low:.2f} to {row.speedup.high:.2f}"),
        Tile("node-hours", f"{row.node_hours:.3g}", texts.nodes(row.nodes)),
    ]


def _charts(plan: ForecastPlan) -> list[Chart]:
    most = max(row.seconds.high for row in plan.rows)
    size, unit = next((size, unit) for limit, size, unit in _UNITS if most >= limit)
    time = [row.seconds.scaled(1 / size) for row in plan.rows]
    cost = [row.seconds.scaled(row.nodes / _HOUR) for row in plan.rows]
    nodes = [float(row.nodes) for row in plan.rows]
    speedup = _band("speed-up", nodes, [row.speedup for row in plan.rows])
    ideal = Curve("ideal", nodes, [], nodes, "thin")
    note = "The true value is in the band nine times in ten."
    return [
        Chart("Time", unit, _band("time", nodes, time), True, "nodes", note),
        Chart("Cost", "node-hours", _band("node-hours", nodes, cost), True, "nodes", note),
        Chart("Speed-up", "times one node", [*speedup, ideal], True, "nodes", note),
    ]


def _band(label: str, nodes: Sequence[float], values: Sequence[Estimate]) -> list[Curve]:
    return [
        Curve(label, nodes, [], [one.value for one in values], "points"),
        Curve("low", nodes, [], [one.low for one in values], "band"),
        Curve("high", nodes, [], [one.high for one in values], "band"),
    ]


def _steps(plan: ForecastPlan) -> Bars:
    bars = [
        Bar(texts.nodes(row.nodes), [row.step.computing, row.step.waiting, row.step.exposed], row.step.seconds)
        for row in plan.rows
    ]
    parts = ["computing", "waiting for the slowest node", "communication that does not overlap"]
    return Bars("A step", "seconds", parts, bars)


def _inputs(plan: ForecastPlan) -> Table:
    rows = [
        [name.replace("_", " "), *(f"{value:.4g}" for value in (one.value, one.low, one.high))]
        for name, one in vars(plan.inputs).items()
        if not name.startswith("seen")
    ]
    return Table("Inputs of the model", ["input", "value", "low", "high"], rows, (1, 2, 3))
