"""A training step of a BERT encoder in bf16 on a CPU with AMX, predicted part by part. Pure.

The prediction uses no measured step. It shows which part of a step on your machine takes longer than it should.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.jobs import Job
from tooling.basis.console import plain_table
from tooling.forecast.inputs import CYCLE_FLOPS
from tooling.forecast.models import KNOWN, Encoder

# The share of the peak that oneDNN's products of a step reach.
PRODUCTS_SHARE = 0.5
# Of attention with tiles, forward and backward with dropout, for each pair of a query and a key of a head with 64
# features: 17 with 128 tokens, 9 with 1,024 (docs/speed.md).
PAIR_CYCLES = 12.0
# Of the dropout kernel, for each element of the embeddings, forward and backward (docs/speed.md). The dropout of
# layers is part of their sums (operators.encoder), which draw random numbers once.
DROPOUT_CYCLES, DRAW_CYCLES = 3.6, 1.1
# Read and written by all operators between the products of a layer, forward and backward, for each token and each
# number of its width: sums of the stream with LayerNorm 60, gradients of the stream 24, GELU 40, what the backward
# pass computes again 28, biases and their gradients 36.
CHAIN_BYTES = 188
# For each weight of a product: cast to bf16, and its gradient to fp32.
CAST_BYTES = 12
# For each parameter: AdamW reads four numbers and writes three; clipping reads the gradients, and scales them.
OPTIMIZER_BYTES = 40
# Memory bandwidth of a core, and of a socket: 0.8 of eight channels of DDR5-4800 (307 GB/s).
CORE_BYTES_PER_SECOND, SOCKET_BYTES_PER_SECOND = 10e9, 245e9


_ENCODERS = {"bert": "bert-base-uncased", "distilbert": "distilbert-base-uncased"}
# The classes of benchmarks.split, and their parts.
CLASSES: Mapping[str, tuple[str, ...]] = {
    "products": ("products", "attention"),
    "memory": ("LayerNorm, GELU, residuals", "dropout of layers", "casts of weights"),
    "random": ("dropout of embeddings",),
    "optimizer": ("AdamW, clipping",),
}


@dataclass(frozen=True)
class StepWork:
    """The work of a step on a rank. `tokens`: computed. `pairs`: of a query and a key, of one head."""

    tokens: float
    pairs: float


def encoder_of(job: Job) -> Encoder | None:
    """The encoder of a job with a base model, otherwise None."""
    found = KNOWN.get(_ENCODERS.get(job.model_type, ""))
    return found if isinstance(found, Encoder) and not (job.sizes or job.is_pretrained) else None


def step_of(report: Mapping[str, Any]) -> StepWork:
    """The work of a report's average step. Padding that the layers left out counts in proportion."""
    batches = [(samples * count, length) for samples, length, count in report["shapes"]]
    padded = sum(samples * length for samples, length in batches) * report["ranks"]
    share = report["tokens_computed"] / padded
    pairs = sum(samples * length**2 for samples, length in batches) * share**2
    return StepWork(report["tokens_computed"] / report["ranks"] / report["steps"], pairs / report["steps"])


def beside(job: Job, report: Mapping[str, Any], bf16: str | None, ghz: float | None) -> dict[str, float] | None:
    """The predicted seconds of each part of a report's step; None for other CPUs and models. `ghz`: the clock."""
    encoder = encoder_of(job)
    if encoder is None or bf16 != "amx_bf16" or not ghz:
        return None
    return seconds(encoder, step_of(report), report["threads"], ghz)


def table(title: str, row: Mapping[str, Any]) -> Table:
    """The prediction beside the measurement, in milliseconds. `row`: of the document, with `predicted_seconds`."""
    shown = plain_table(("part", "predicted, ms", "measured, ms"), ("part",), title)
    predicted, measured, split = row["predicted_seconds"], row["step_seconds"], row.get("split") or {}
    for name, parts in CLASSES.items():
        found = f"{split[name] * measured * 1000:.0f}" if name in split else ""
        detail = f"{name}: {', '.join(parts)}" if parts != (name,) else name
        shown.add_row(detail, f"{sum(predicted[part] for part in parts) * 1000:.0f}", found)
    shown.add_row("a step", f"{sum(predicted.values()) * 1000:.0f}", f"{measured * 1000:.0f}")
    return shown


def seconds(encoder: Encoder, step: StepWork, cores: int, ghz: float) -> dict[str, float]:
    """The seconds of each part."""
    model = encoder.model("")
    cycles = cores * ghz * 1e9
    bandwidth = min(cores * CORE_BYTES_PER_SECOND, SOCKET_BYTES_PER_SECOND)
    heads = encoder.layers * encoder.hidden / 64
    wide = step.tokens * encoder.hidden
    return {
        "products": 6 * model.products * step.tokens / (cycles * CYCLE_FLOPS["amx"] * PRODUCTS_SHARE),
        "attention": heads * step.pairs * PAIR_CYCLES / cycles,
        "LayerNorm, GELU, residuals": encoder.layers * wide * CHAIN_BYTES / bandwidth,
        "dropout of layers": 2 * encoder.layers * wide * DRAW_CYCLES / cycles,
        "dropout of embeddings": wide * DROPOUT_CYCLES / cycles,
        "casts of weights": model.products * CAST_BYTES / bandwidth,
        "AdamW, clipping": model.parameters * OPTIMIZER_BYTES / bandwidth,
    }
