"""The predicted parts of a training step on a CPU with AMX."""

from typing import Any

import pytest
from rich.console import Console

from benchmarks import jobs
from benchmarks.split import CLASSES
from tooling.basis.paths import ROOT
from tooling.bench.train import prediction
from tooling.bench.train.prediction import StepWork

BERT = jobs.BY_NAME["bert-classification"]
REPORT: dict[str, Any] = {
    "ranks": 2,
    "steps": 4,
    "threads": 10,
    "seconds": 8.0,
    "shapes": [[32, 128, 3], [32, 64, 1]],
    "tokens_computed": 2 * 32 * (3 * 128 + 64),
}


def test_the_work_of_a_step_is_that_of_a_rank() -> None:
    assert prediction.step_of(REPORT) == StepWork(32 * 448 / 4, 32 * (3 * 128**2 + 64**2) / 4)


def test_padding_that_was_left_out_counts_in_proportion() -> None:
    half = {**REPORT, "tokens_computed": REPORT["tokens_computed"] // 2}
    assert prediction.step_of(half) == StepWork(32 * 448 / 8, 32 * (3 * 128**2 + 64**2) / 16)


def test_products_take_their_operations_at_the_rate_of_the_tiles() -> None:
    """BERT-base has 85 million weights in products; 4,096 tokens; 10 cores at 2 GHz, of 1,024 a cycle."""
    encoder = prediction.encoder_of(BERT)
    assert encoder is not None
    found = prediction.seconds(encoder, StepWork(4096, 32 * 128**2), 10, 2.0)
    assert found["products"] == pytest.approx(
        6 * 84_934_656 * 4096 / (10 * 2e9 * 1024 * prediction.PRODUCTS_SHARE)
    )
    assert set(found) == {part for parts in prediction.CLASSES.values() for part in parts}


def test_the_documentation_has_the_prediction_for_a_socket() -> None:
    """56 cores at 2.6 GHz, 32 rows of 128 tokens."""
    encoder = prediction.encoder_of(BERT)
    assert encoder is not None
    found = prediction.seconds(encoder, StepWork(32 * 128, 32 * 128**2), 56, 2.6)
    found["dropout"] = found.pop("dropout of layers") + found.pop("dropout of embeddings")
    lines = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").splitlines()
    names, values = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for at, start in enumerate(lines)
        if start.startswith("| products | attention |") and start.endswith("| samples/s |")
        for line in (start, lines[at + 2])
    )
    step = sum(found.values())
    expected = {name: f"{seconds * 1000:.0f} ms" for name, seconds in {**found, "a step": step}.items()}
    assert dict(zip(names, values, strict=True)) == {**expected, "samples/s": f"{32 / step:.0f}"}


def test_memory_bandwidth_ends_at_the_sockets() -> None:
    encoder = prediction.encoder_of(BERT)
    assert encoder is not None
    few, many, more = (prediction.seconds(encoder, StepWork(4096, 1), cores, 2.0) for cores in (10, 40, 80))
    assert few["AdamW, clipping"] > many["AdamW, clipping"] == more["AdamW, clipping"]
    assert many["products"] > more["products"]


@pytest.mark.parametrize(
    ("job", "bf16", "ghz"),
    [
        ("minilm-mrpc", "amx_bf16", 2.0),
        ("tiny", "amx_bf16", 2.0),
        (BERT.name, "avx512_bf16", 2.0),
        (BERT.name, "amx_bf16", 0),
    ],
    ids=["another model", "another size", "no AMX", "unknown clock"],
)
def test_other_jobs_and_cpus_are_not_predicted(job: str, bf16: str, ghz: float) -> None:
    assert prediction.beside(jobs.BY_NAME[job], REPORT, bf16, ghz) is None


def test_the_table_has_the_measurement_beside_the_prediction() -> None:
    row = {
        "predicted_seconds": prediction.beside(BERT, REPORT, "amx_bf16", 2.0),
        "step_seconds": 2.0,
        "split": {**dict.fromkeys(CLASSES, 0.1), "products": 0.25},
    }
    console = Console(width=120)
    with console.capture() as capture:
        console.print(prediction.table("ours", row))
    lines = capture.get().splitlines()
    assert any(line.startswith("products: products, attention") and line.split()[-1] == "500" for line in lines)
    assert lines[-1].split()[-1] == "2000"
