"""The results of all runs: the document with rows, ratios and shares of the ceiling, and its tables. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.jobs import BY_NAME, Job
from benchmarks.split import CLASSES
from cpu_train_stack.bench.cases import digits
from tooling.basis.console import plain_table
from tooling.bench.forecast import inputs, models
from tooling.bench.forecast.estimate import Estimate
from tooling.bench.output import Document
from tooling.bench.train.recipes import BASELINES, BF16, FP32, OURS, TRL

Report = Mapping[str, Any]
Row = Mapping[str, Any]
# The names of plan-cluster for the flags of /proc/cpuinfo.
_INSTRUCTIONS = {"amx_bf16": "amx", "avx512_bf16": "avx512_bf16"}
_SHORT = {"communication": "comm.", "optimizer": "optim."}


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


def ratio(speeds: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """The median of the ratios of all rounds: a slow round has no effect."""
    ratios = [speed / other for speed, other in zip(speeds, others, strict=False) if speed and other]
    return statistics.median(ratios) if ratios else None


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
        "samples_per_second": digits(statistics.median(speeds)),
        "samples_per_second_rounds": [digits(speed) for speed in speeds],
        "ratio_to": {name: digits(value) if value else None for name, value in compared.items()},
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
    model = models.find("MiniLM" if job.is_pretrained else f"{job.model_type}-base")
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


def title(job: str, ranks: int) -> str:
    """`BERT-base, classification, 128 tokens, batch 32; 2 ranks`."""
    return f"{BY_NAME[job].title}; {ranks} rank{'s' if ranks > 1 else ''}"


def places(document: Document) -> list[tuple[str, int]]:
    """The jobs and numbers of ranks, in the order of the rows."""
    return list(dict.fromkeys((row["job"], row["ranks"]) for row in document["rows"]))


def table(document: Document) -> RenderableType:
    """Two tables for each job and number of ranks, speed and distribution of time; then the ceilings."""
    parts: list[RenderableType] = []
    for job, ranks in places(document):
        found = [row for row in document["rows"] if (row["job"], row["ranks"]) == (job, ranks)]
        parts += [Text(title(job, ranks), style="bold"), _speeds(found), Text()]
        labelled = {row["recipe"]: row.get("labelled_tokens_per_second") for row in found}
        if any(labelled.values()):
            rates = ", ".join(f"{name} {rate:.0f}" for name, rate in labelled.items() if rate)
            parts += [Text(f"tokens with a label per second: {rates}"), Text()]
        if any(row.get("split") for row in found):
            parts += [Text("where the time goes"), _splits(found), Text()]
        for row in found:
            if guess := row.get("predicted_samples_per_second"):
                low, value, high = (_number(guess[name]) for name in ("low", "value", "high"))
                text = f"{row['recipe']}, predicted from the cores: {value} samples/s ({low} to {high})"
                parts += [Text(text), Text()]
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


def _speeds(found: Sequence[Row]) -> Table:
    measured = {name for row in found for name, ratio in (row.get("ratio_to") or {}).items() if ratio}
    compared = {
        title: name
        for title, name in (("vs. fp32", FP32), ("vs. bf16", BF16), ("vs. trl", TRL))
        if name in measured
    }
    columns = ("recipe", "samples/s", "min to max", *compared, "CPU s", "GB", "tokens", "ceiling")
    result = plain_table(columns, ("recipe",))
    for row in found:
        if row["samples_per_second"] is None:
            result.add_row(row["recipe"], "-")
            continue
        slowest, fastest = (_number(one(row["samples_per_second_rounds"])) for one in (min, max))
        result.add_row(
            row["recipe"],
            _number(row["samples_per_second"]),
            f"{slowest} to {fastest}" if slowest != fastest else "",
            *(_times(row["ratio_to"].get(name)) for name in compared.values()),
            f"{row['cpu_seconds_per_sample']:.3g}",
            f"{row['peak_memory_bytes'] / 1e9:.2f}",
            f"{row['tokens_computed_per_useful']:.2f}",
            "" if row["ceiling_share"] is None else f"{row['ceiling_share']:.0%}",
        )
    return result


def _splits(found: Iterable[Row]) -> Table:
    result = plain_table(["recipe", *(_SHORT.get(name, name) for name in CLASSES)], ("recipe",))
    for row in found:
        if row.get("split"):
            result.add_row(row["recipe"], *(f"{row['split'][name]:.0%}" for name in CLASSES))
    return result


def _number(speed: float) -> str:
    return f"{speed:.3g}" if 1 <= speed < 100 else f"{speed:.2g}" if speed < 1 else f"{speed:.0f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"
