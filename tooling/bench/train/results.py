"""The results of all runs: the document with rows, ratios and shares of the ceiling, and its tables. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from benchmarks.jobs import BY_NAME, Job
from benchmarks.split import CLASSES
from cpu_train_stack.bench.cases import digits
from tooling.basis.figures import cell, terminal_table
from tooling.bench.forecast import inputs, models
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.plots import job_title, jobs
from tooling.bench.report import Document, ratio
from tooling.bench.train.recipes import BASELINES, BF16, FP32, OURS, TRL

Report = Mapping[str, Any]
# The names of plan-cluster for the flags of /proc/cpuinfo.
_INSTRUCTIONS = {"amx_bf16": "amx", "avx512_bf16": "avx512_bf16"}
SPEEDS = {
    "recipe": "{recipe}",
    "samples/s": "{samples_per_second}",
    "min to max": "{samples_per_second_rounds:range}",
    "vs. fp32": f"{{ratio_to[{FP32}]:x}}",
    "vs. bf16": f"{{ratio_to[{BF16}]:x}}",
    "vs. trl": f"{{ratio_to[{TRL}]:x}}",
    "CPU s": "{cpu_seconds_per_sample}",
    "GB": "{peak_memory_bytes:GB}",
    "tokens": "{tokens_computed_per_useful}",
    "labels/s": "{labelled_tokens_per_second}",
    "ceiling": "{ceiling_share:%}",
}
_SHORT = {"communication": "comm.", "optimizer": "optim."}
SPLIT = {"recipe": "{recipe}", **{_SHORT.get(name, name): f"{{split[{name}]:%}}" for name in CLASSES}}


@dataclass
class Runs:
    """The runs of a recipe and job: a report for each round, or None with a `reason`.

    `failed`: a run failed. False if the recipe cannot run here.
    """

    job: str
    recipe: str
    ranks: int
    reports: list[Report | None] = field(default_factory=list)
    reason: str | None = None
    failed: bool = False

    @property
    def speeds(self) -> list[float | None]:
        """Samples per second of each round."""
        return [report["samples_per_second"] if report else None for report in self.reports]


@dataclass(frozen=True)
class Ceiling:
    """The GFLOP/s that the machine reaches with the matrix products of a job.

    `best`: with the fastest shape. `step`: with all products of a step, each at its own rate. Both use the faster
    of bf16 and fp32: on a CPU without bf16 instructions, fp32 is the limit. `by_dtype`: the best rate of each
    type.
    """

    job: str
    best: float
    step: float
    by_dtype: Mapping[str, float]


def ceiling(job: str, reports: Sequence[Report]) -> Ceiling:
    """The ceiling, from the best round of each shape."""
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
    """Map the samples and tokens of a batch to the operations that the ceiling's runs counted."""
    return {
        (int(samples), int(length)): flops
        for report in reports
        for shape, flops in report["flops"].items()
        for samples, length in [shape.split("x")]
    }


def gflops(report: Report, flops: Mapping[tuple[int, int], int]) -> float | None:
    """The rate of the matrix products on all ranks. None if the operations of a batch are unknown.

    The operations of padding that the layers left out are subtracted in proportion to its tokens.
    """
    batches = {(samples, length): count for samples, length, count in report["shapes"]}
    if not all(shape in flops for shape in batches):
        return None
    total = sum(flops[shape] * count for shape, count in batches.items())
    tokens = sum(samples * length * count for (samples, length), count in batches.items())
    rate: float = total / tokens * report["tokens_computed"] / report["seconds"] / 1e9
    return rate


def rows(
    runs: Sequence[Runs], ceilings: Mapping[str, Ceiling], flops: Mapping[str, Mapping[tuple[int, int], int]]
) -> list[dict[str, Any]]:
    """A row for each recipe of each job and number of ranks."""
    found = []
    for one in runs:
        same = (other for other in runs if (other.job, other.ranks) == (one.job, one.ranks))
        compared = {other.recipe: ratio(one.speeds, other.speeds) for other in same if other.recipe in BASELINES}
        found.append(_row(one, compared, ceilings.get(one.job), flops.get(one.job, {})))
    return found


def _row(
    one: Runs,
    compared: Mapping[str, float | None],
    limit: Ceiling | None,
    flops: Mapping[tuple[int, int], int],
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
    return {
        **head,
        "samples_per_second": digits(statistics.median(speeds)),
        "samples_per_second_rounds": [digits(speed) for speed in speeds],
        "ratio_to": compared,
        "tokens_computed_per_useful": digits(last["tokens_computed"] / last["tokens_useful"]),
        "labelled_tokens_per_second": _labelled(reports),
        "cpu_seconds_per_sample": digits(statistics.median(map(_processor, reports))),
        "gflops": digits(rate) if rate else None,
        "ceiling_share": round(rate / limit.best, 3) if rate and limit else None,
        "step_ceiling_share": round(rate / limit.step, 3) if rate and limit else None,
        "peak_memory_bytes": max(int(report["peak_memory_bytes"]) for report in reports),
        "split": next((report["split"] for report in reports if report["split"]), None),
        "steps": [report["steps"] for report in reports],
        "step_seconds": digits(last["seconds"] / last["steps"]),
        "batches": last["shapes"],
        **{key: last[key] for key in ("torch", "backend", "threads", "preloads", "environment")},
        **tail,
    }


def document(
    runs: Sequence[Runs], ceiling_reports: Mapping[str, Sequence[Report]], facts: Mapping[str, Any]
) -> dict[str, Any]:
    ceilings = {job: ceiling(job, reports) for job, reports in ceiling_reports.items() if reports}
    flops = {job: flops_of_batches(reports) for job, reports in ceiling_reports.items()}
    some = next((report for reports in ceiling_reports.values() for report in reports), {})
    found = rows(runs, ceilings, flops)
    for one, row in zip(runs, found, strict=True):
        last = next((report for report in reversed(one.reports) if report), None)
        if last and one.recipe == OURS:
            instructions = None if facts.get("instructions") else some.get("bf16")
            guess = predicted(BY_NAME[one.job], last, instructions, some.get("ghz"))
            row["predicted_samples_per_second"] = guess and {
                name: digits(end) for name, end in vars(guess).items()
            }
    return {
        **facts,
        **{key: some.get(key) for key in ("cpu", "ghz", "bf16")},
        "rows": found,
        "ceiling_gflops": max((digits(one.best) for one in ceilings.values()), default=None),
        "ceilings": [
            {
                "job": one.job,
                "gflops": digits(one.best),
                "step_gflops": digits(one.step),
                "gflops_by_dtype": {dtype: digits(rate) for dtype, rate in one.by_dtype.items()},
            }
            for one in ceilings.values()
        ],
    }


def predicted(job: Job, report: Report, bf16: str | None, ghz: float | None) -> Estimate | None:
    """The samples per second of all ranks, from the cores alone, as plan-cluster guesses them.

    None for other models than plan-cluster's, and if the instructions or the clock are unknown.
    """
    if job.sizes or bf16 not in _INSTRUCTIONS or not ghz:
        return None
    model = models.find(f"{job.model_type}-base")
    length = report["tokens_computed"] / (report["samples_per_second"] * report["seconds"])
    cores = report["threads"] * report["ranks"]
    return inputs.samples_per_second(model, length, cores, ghz, _INSTRUCTIONS[bf16])


def _processor(report: Report) -> float:
    """The processor time per sample, in seconds. Other programs on the machine hardly change it."""
    return float(report["cpu_seconds"]) / (float(report["samples_per_second"]) * float(report["seconds"]))


def _labelled(reports: Sequence[Report]) -> float | None:
    """Tokens with a label per second: the median of the rounds. None for tasks without such tokens."""
    rates = [report["tokens_labelled"] / report["seconds"] for report in reports if report["tokens_labelled"]]
    return digits(statistics.median(rates)) if rates else None


def table(document: Document) -> RenderableType:
    """Two tables for each job and number of ranks, speed and distribution of time; then the ceilings."""
    parts: list[RenderableType] = []
    for job, ranks in jobs(document):
        found = [row for row in document["rows"] if (row["job"], row["ranks"]) == (job, ranks)]
        parts += [Text(job_title(job, ranks), style="bold"), terminal_table(SPEEDS, found), Text()]
        if profiled := [row for row in found if row.get("split")]:
            parts += [Text("where the time goes"), terminal_table(SPLIT, profiled), Text()]
        for row in found:
            if guess := row.get("predicted_samples_per_second"):
                text = cell("predicted from the cores: {value} samples/s ({low} to {high})", guess)
                parts += [Text(f"{row['recipe']}, {text}"), Text()]
        parts += [Text(f"{row['recipe']}: {row['reason']}") for row in found if row["reason"]]
        parts += [Text()] if any(row["reason"] for row in found) else []
    for ceiling in document["ceilings"]:
        by_dtype = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in ceiling["gflops_by_dtype"].items())
        parts.append(
            Text(
                f"ceiling of {ceiling['job']}, GFLOP/s: {ceiling['gflops']:.0f}, with all products of a step "
                f"{ceiling['step_gflops']:.0f} ({by_dtype})"
            )
        )
    before, after = document["load"]
    parts.append(Text(f"load average: {before} before, {after} after, including the measurement"))
    return Group(*parts)
