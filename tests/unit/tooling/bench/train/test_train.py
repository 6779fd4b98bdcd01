"""`./inv bench train`: its options, results and pictures."""

from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from benchmarks.jobs import BY_NAME
from benchmarks.split import CLASSES
from cpu_train_stack.cli.errors import UsageError
from tooling.bench import plots, report, runner
from tooling.bench.forecast import inputs, models
from tooling.bench.train import results, run
from tooling.bench.train.results import Runs
from tooling.bench.train.run import TrainOptions
from tooling.image.choice import Choice

SPLIT = dict.fromkeys(CLASSES, 0.1) | {"products": 0.5}
BATCHES = {(8, 32): 2_000_000_000, (8, 16): 1_000_000_000}


def trained(speed: float, seconds: float = 2.0, split: dict[str, float] | None = None) -> dict[str, Any]:
    return {
        "samples_per_second": speed,
        "seconds": seconds,
        "cpu_seconds": 0.25 * speed * seconds,
        "ranks": 2,
        "steps": 4,
        "shapes": [[8, 16, 2], [8, 32, 1]],  # of one rank
        "tokens_useful": 512,
        "tokens_computed": 2 * 512,
        "tokens_labelled": 0,
        "peak_memory_bytes": 1_500_000_000,
        "split": split,
        "torch": "2.13.0",
        "backend": "gloo",
        "threads": 1,
        "preloads": ["libgomp"],
        "environment": {"OMP_NUM_THREADS": "1"},
    }


def product(rate: float, other: float, share: float, m: int = 8) -> dict[str, Any]:
    shape = {"count": 1, "m": m, "k": 4, "n": 4}
    return {**shape, "times": 2, "share": share, "gflops": {"bf16": rate, "fp32": other}}


def ceiling_report(*products: dict[str, Any]) -> dict[str, Any]:
    flops = {f"{samples}x{length}": count for (samples, length), count in BATCHES.items()}
    return {"flops": flops, "products": list(products), "cpu": "A processor", "bf16": None}


RUNS = [
    Runs("tiny", "guide-fp32", 2, [trained(10), trained(20), trained(10)]),
    Runs("tiny", "guide-bf16", 2, [trained(5), trained(8), trained(5)]),
    Runs("tiny", "run_cpu", 2, [None, None, None], "run_cpu makes no process group"),
    Runs("tiny", "accelerate", 2, [trained(5), None, None], "exit code 1: gone", failed=True),
    Runs("tiny", "ours", 2, [trained(15, split=SPLIT), trained(24, 1.0, SPLIT), trained(20, split=SPLIT)]),
]
FACTS = {
    "date": "2026-01-02T03:04:05+00:00",
    "image": "sha256:1",
    "pin": "2.13",
    "cpus": "0-1",
    "load": [0.1, 2.0],
}


@pytest.fixture
def document() -> dict[str, Any]:
    reports = [
        ceiling_report(product(4, 8, 0.5), product(2, 1, 0.5, m=2)),
        ceiling_report(product(10, 5, 0.5), product(2, 1, 0.5, m=2)),
    ]
    return results.document(RUNS, {"tiny": reports}, FACTS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TrainOptions(Choice(), job="bert"), "--job 'bert', expected one or more of mrpc-guide, "),
        (TrainOptions(Choice(), recipe="theirs"), "--recipe 'theirs', expected one or more of guide-fp32, "),
        (TrainOptions(Choice(), ranks="1,x"), "--ranks '1,x', expected numbers separated by commas"),
        (TrainOptions(Choice(), ranks="²"), "--ranks '²', expected numbers separated by commas"),
        (TrainOptions(Choice(), ranks="0"), "--ranks '0', expected numbers"),
        (TrainOptions(Choice(), repeats=0), "--repeats is 0, expected 1 or more"),
        (TrainOptions(Choice(), seconds=0), "--seconds is 0, expected more than 0"),
        (TrainOptions(Choice(), steps=-1), "--steps is -1, expected"),
        (
            TrainOptions(Choice(), data="rows.csv"),
            "--data with the jobs mrpc-guide, .*, expected --job with one",
        ),
        (
            TrainOptions(Choice(), job="qwen-lora", data="rows.csv"),
            "--data with the jobs qwen-lora, expected --job with one of mrpc-guide",
        ),
        (TrainOptions(Choice(), job="mrpc-guide", data="none.csv"), "--data none.csv: no such file"),
    ],
)
def test_bad_options_are_refused_before_the_build(options: TrainOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run.run(options)


@pytest.mark.parametrize("closed", ["is_file", "open"], ids=["folder", "file"])
def test_data_that_the_user_cannot_read_is_refused(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, *_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    file = tmp_path / "rows.csv"
    file.touch()
    options = TrainOptions(Choice(), job="mrpc-guide", data=str(file))
    assert run.plan(options).data == file
    with monkeypatch.context() as closing:
        closing.setattr(Path, closed, denied)
        with pytest.raises(
            UsageError, match=r"--data .*/rows\.csv cannot be read: Permission denied: choose a file"
        ):
            run.plan(options)


def test_a_plan_follows_from_the_options() -> None:
    found = run.plan(TrainOptions(Choice(), job="tiny", recipe="ours", ranks="2,1,2", steps=3, repeats=1))
    assert (found.jobs, [recipe.name for recipe in found.recipes], found.ranks) == (("tiny",), ["ours"], (2, 1))
    assert found.flags == ("--seconds=15", "--steps=3")


def test_a_ratio_is_the_median_of_the_rounds_with_both_recipes() -> None:
    assert report.ratio([15, 24, 20], [10, 20, 10]) == 1.5  # of 1.5, 1.2 and 2
    assert report.ratio([15, None, 40], [10, 20, 10]) == 2.75
    assert report.ratio([15, 24, 40], [10, None, 10]) == 2.75
    assert report.ratio([None], [10]) is None


def test_a_ceiling_is_the_best_of_all_rounds_and_types() -> None:
    found = results.ceiling("tiny", [ceiling_report(product(4, 8, 0.5), product(2, 1, 0.5, m=2))])
    assert (found.best, found.by_dtype) == (8, {"bf16": 4, "fp32": 8})
    assert found.step == pytest.approx(1 / (0.5 / 8 + 0.5 / 2))


def test_rows_have_speed_ratios_and_shares_of_the_ceiling(document: dict[str, Any]) -> None:
    rows = {row["recipe"]: row for row in document["rows"]}
    ours = rows["ours"]
    assert ours["samples_per_second"] == 20
    assert ours["samples_per_second_rounds"] == [15, 24, 20]
    assert ours["ratio_to"] == {"guide-fp32": 1.5, "guide-bf16": 3.0}
    # 2 x 1 + 1 x 2 GFLOP on 2 ranks in 2, 1 and 2 s; the best shape makes 10 GFLOP/s.
    assert (ours["gflops"], ours["ceiling_share"]) == (4.0, 0.4)
    assert ours["step_ceiling_share"] == pytest.approx(4 * (0.5 / 10 + 0.5 / 2), abs=1e-3)
    assert ours["split"] == SPLIT
    assert ours["cpu_seconds_per_sample"] == 0.25
    assert document["ceiling_gflops"] == 10
    assert (document["cpu"], document["load"]) == ("A processor", [0.1, 2.0])


def test_a_recipe_without_a_run_is_a_row_with_the_reason(document: dict[str, Any]) -> None:
    rows = {row["recipe"]: row for row in document["rows"]}
    assert (rows["run_cpu"]["samples_per_second"], rows["run_cpu"]["failed"]) == (None, False)
    assert rows["run_cpu"]["reason"] == "run_cpu makes no process group"
    assert (rows["accelerate"]["samples_per_second"], rows["accelerate"]["failed"]) == (5, True)


def test_a_measurement_with_trl_has_a_column_for_it() -> None:
    runs = [Runs("tiny-lora", "trl", 2, [trained(5)]), Runs("tiny-lora", "ours", 2, [trained(15)])]
    console = Console(width=100)
    for part, shown in ((runs, True), (runs[1:], False)):
        with console.capture() as capture:
            console.print(results.table(results.document(part, {}, FACTS)))
        assert ("vs. trl" in capture.get()) is shown
        assert "vs. fp32" not in capture.get()
        assert ("3.00x" in capture.get()) is shown


MEASURED = {"bf16": "amx_bf16", "ghz": 2.0}


@pytest.mark.parametrize(
    ("job", "facts"),
    [
        ("qwen-lora", MEASURED),
        ("tiny", MEASURED),
        ("mrpc-guide", {**MEASURED, "bf16": None}),
        ("mrpc-guide", {**MEASURED, "ghz": 0}),
    ],
    ids=["another model", "another size", "no bf16", "unknown clock"],
)
def test_other_models_and_cpus_are_not_predicted(job: str, facts: dict[str, Any]) -> None:
    assert results.predicted(BY_NAME[job], trained(20), **facts) is None


def test_the_speed_of_ours_is_compared_with_the_guess_of_plan_cluster() -> None:
    runs = [Runs("mrpc-guide", recipe, 2, [trained(20)]) for recipe in ("guide-bf16", "ours")]
    found = results.document(runs, {"mrpc-guide": [{**ceiling_report(product(4, 8, 1.0)), **MEASURED}]}, FACTS)
    guess = inputs.samples_per_second(models.find("bert-base"), 1024 / 40, 2, 2.0, "amx")
    (guide, ours) = found["rows"]
    assert "predicted_samples_per_second" not in guide
    assert ours["predicted_samples_per_second"]["value"] == pytest.approx(guess.value, rel=1e-3)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(results.table(found))
    assert "ours, predicted from the cores:" in capture.get()


def test_a_language_model_is_measured_in_tokens_with_a_label() -> None:
    reports = [{**trained(10, seconds), "tokens_labelled": 300} for seconds in (2.0, 3.0, 1.0)]
    runs = [Runs("tiny-lora", "guide-bf16", 2, []), Runs("tiny-lora", "ours", 2, [*reports, None])]
    found = results.document(runs, {}, FACTS)
    assert [row.get("labelled_tokens_per_second") for row in found["rows"]] == [None, 150]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(results.table(found))
    assert "labels/s" in capture.get()
    assert [line.split()[-1] for line in capture.get().splitlines() if line.startswith("ours ")] == ["150"]


def test_operations_of_padding_that_was_left_out_do_not_count() -> None:
    (row,) = results.rows(
        [Runs("tiny", "ours", 2, [{**trained(10), "tokens_computed": 512}])], {}, {"tiny": BATCHES}
    )
    assert (row["gflops"], row["tokens_computed_per_useful"]) == (2.0, 1.0)


def test_a_batch_with_unknown_operations_has_no_ceiling_share() -> None:
    (row,) = results.rows(RUNS[:1], {}, {"tiny": {(8, 16): 1}})
    assert (row["gflops"], row["ceiling_share"]) == (None, None)


def test_the_tables_fit_a_narrow_terminal(document: dict[str, Any]) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(results.table(document))
    lines = capture.get().splitlines()
    assert "…" not in "".join(lines)
    (speed,) = [line.split() for line in lines if line.startswith("ours ") and "x" in line]
    assert speed == ["ours", "20", "15", "to", "24", "1.50x", "3.00x", "0.25", "1.5", "2", "40%"]
    assert ["ours", "50%", *["10%"] * 5] in [line.split() for line in lines]
    assert "accelerate: exit code 1: gone" in lines
    assert any("load average: 0.1 before, 2.0 after" in line for line in lines)


def test_a_bar_is_as_long_as_the_time_of_a_sample(document: dict[str, Any]) -> None:
    ours = document["rows"][-1]
    assert sum(width for _name, width in plots.pieces(ours)) == pytest.approx(1000 / 20)
    assert dict(plots.pieces(ours))["products"] == pytest.approx(25)
    assert dict(plots.pieces(document["rows"][0]))["other"] == 100


def test_the_picture_is_drawn(document: dict[str, Any], tmp_path: Path) -> None:
    plots.train(document, tmp_path / "one.png")
    data = (tmp_path / "one.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 8_000


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "Traceback\n  File x\nValueError: no such thing\nCalledProcessError: Error: command\n",
            "ValueError: no such",
        ),
        ("a\nb\n\n", "b"),
        ("docker: Error response from daemon: no CPUs\n\nRun 'docker run --help'\n", "docker: Error response"),
        ("error: --job is wrong: do this\n", "error: --job is wrong"),
        ("", "no output"),
    ],
)
def test_the_reason_of_a_failure_is_its_last_error(output: str, expected: str) -> None:
    assert runner.reason(output).startswith(expected)
