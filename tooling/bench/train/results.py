"""What the measured runs say together: rows, ratios, shares of the ceiling. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tooling.bench.train.recipes import BASELINES

Report = Mapping[str, Any]


@dataclass
class Runs:
    """A recipe's runs of a job: a report for each round, None where there is none; `reason`: why one is missing.

    `failed`: it was tried and did not work, in contrast to what cannot be tried here.
    """

    job: str
    recipe: str
    ranks: int
    reports: list[Report | None] = field(default_factory=list)
    reason: str | None = None
    failed: bool = False

    @property
    def speeds(self) -> list[float | None]:
        """Samples a second, by round."""
        return [report["samples_per_second"] if report else None for report in self.reports]


@dataclass(frozen=True)
class Ceiling:
    """GFLOP/s that the machine makes of a job's products.

    `best`: of the fastest shape; `step`: of all products of a step, each at its own rate. Both at the better of
    bf16 and fp32: on a CPU without bf16 instructions fp32 is what limits. `by_dtype`: the best of each.
    """

    job: str
    best: float
    step: float
    by_dtype: Mapping[str, float]


def ceiling(job: str, reports: Sequence[Report]) -> Ceiling:
    """The best of every round, for each shape."""
    rates: dict[tuple[int, ...], dict[str, float]] = {}
    shares: dict[tuple[int, ...], float] = {}
    for report in reports:
        for product in report["products"]:
            key = tuple(product[name] for name in ("count", "m", "k", "n"))
            found = rates.setdefault(key, {})
            shares[key] = product["share"]
            for dtype, rate in product["gflops"].items():
                found[dtype] = max(found.get(dtype, 0.0), rate)
    best = {key: max(found.values()) for key, found in rates.items()}
    seconds = sum(shares[key] / best[key] for key in best)
    dtypes = {dtype: max(found[dtype] for found in rates.values()) for dtype in next(iter(rates.values()))}
    return Ceiling(job, max(best.values()), sum(shares.values()) / seconds, dtypes)


def flops_of_batches(reports: Sequence[Report]) -> dict[tuple[int, int], int]:
    """By samples and tokens of a batch, from what the ceilings' runs counted."""
    return {
        (int(samples), int(length)): flops
        for report in reports
        for shape, flops in report["flops"].items()
        for samples, length in [shape.split("x")]
    }


def gflops(report: Report, flops: Mapping[tuple[int, int], int]) -> float | None:
    """The rate of the model's products over all ranks, None where a batch was not counted."""
    batches = {(samples, length): count for samples, length, count in report["shapes"]}
    if not all(shape in flops for shape in batches):
        return None
    total = sum(flops[shape] * count for shape, count in batches.items())
    rate: float = total * report["ranks"] / report["seconds"] / 1e9
    return rate


def ratio(speeds: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """The median of the rounds' own ratios: what slows a whole round does not count."""
    found = [speed / other for speed, other in zip(speeds, others, strict=False) if speed and other]
    return statistics.median(found) if found else None


def rows(
    runs: Sequence[Runs], ceilings: Mapping[str, Ceiling], flops: Mapping[str, Mapping[tuple[int, int], int]]
) -> list[dict[str, Any]]:
    """A row for each recipe of each job and number of ranks."""
    return [_row(one, _baselines(one, runs), ceilings.get(one.job), flops.get(one.job, {})) for one in runs]


def _baselines(one: Runs, runs: Sequence[Runs]) -> dict[str, Runs]:
    return {
        other.recipe: other
        for other in runs
        if other.recipe in BASELINES and (other.job, other.ranks) == (one.job, one.ranks)
    }


def _row(
    one: Runs, baselines: Mapping[str, Runs], limit: Ceiling | None, flops: Mapping[tuple[int, int], int]
) -> dict[str, Any]:
    reports = [report for report in one.reports if report]
    head = {"job": one.job, "recipe": one.recipe, "ranks": one.ranks}
    tail = {"reason": one.reason, "failed": one.failed}
    if not reports:
        return {**head, "samples_per_second": None, "ceiling_share": None, "peak_memory_bytes": None, **tail}
    speeds = [float(report["samples_per_second"]) for report in reports]
    rates = [rate for report in reports if (rate := gflops(report, flops)) is not None]
    rate = statistics.median(rates) if rates else None
    last = reports[-1]
    compared = {name: ratio(one.speeds, other.speeds) for name, other in baselines.items()}
    return {
        **head,
        "samples_per_second": _digits(statistics.median(speeds)),
        "samples_per_second_rounds": [_digits(speed) for speed in speeds],
        "ratio_to": {name: _digits(value) if value else None for name, value in compared.items()},
        "cpu_seconds_per_sample": _digits(statistics.median(map(_processor, reports))),
        "gflops": _digits(rate) if rate else None,
        "ceiling_share": round(rate / limit.best, 3) if rate and limit else None,
        "step_ceiling_share": round(rate / limit.step, 3) if rate and limit else None,
        "peak_memory_bytes": max(int(report["peak_memory_bytes"]) for report in reports),
        "split": next((report["split"] for report in reports if report["split"]), None),
        "steps": [report["steps"] for report in reports],
        "batches": last["shapes"],
        **{key: last[key] for key in ("torch", "backend", "threads", "preloads", "environment")},
        **tail,
    }


def document(
    runs: Sequence[Runs], ceiling_reports: Mapping[str, Sequence[Report]], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole of it."""
    ceilings = {job: ceiling(job, reports) for job, reports in ceiling_reports.items() if reports}
    flops = {job: flops_of_batches(reports) for job, reports in ceiling_reports.items()}
    some = next((report for reports in ceiling_reports.values() for report in reports), {})
    return {
        **facts,
        **{key: some.get(key) for key in ("cpu", "bf16")},
        "rows": rows(runs, ceilings, flops),
        "ceiling_gflops": max((_digits(one.best) for one in ceilings.values()), default=None),
        "ceilings": [
            {
                "job": one.job,
                "gflops": _digits(one.best),
                "step_gflops": _digits(one.step),
                "gflops_by_dtype": {dtype: _digits(rate) for dtype, rate in one.by_dtype.items()},
            }
            for one in ceilings.values()
        ],
    }


def _processor(report: Report) -> float:
    """Seconds of processor time that a sample took: other jobs on the machine hardly change it."""
    return float(report["cpu_seconds"]) / (float(report["samples_per_second"]) * float(report["seconds"]))


def _digits(value: float) -> float:
    """Four significant digits: the spread is larger than what is cut off."""
    return float(f"{value:.4g}")
