"""result.json: what ran, how fast it was, and what the model learned.

On rank 0, `run` calls `document` for the facts of setup, trainer and ranks, adds the process group, the launcher
and the times, and passes all of it to `write` and to `summary`, the line for the user.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpu_train_stack import contract
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.records.origin import without_credentials
from cpu_train_stack.records.record import finite
from cpu_train_stack.train.output import folder

if TYPE_CHECKING:
    from cpu_train_stack.records.tokens import Count
    from cpu_train_stack.train.flags.arguments import TaskArguments
    from cpu_train_stack.train.loop.trainer import CpuTrainer
    from cpu_train_stack.train.output.replicas import Replica
    from cpu_train_stack.train.setup import Setup

_FIRST_STEPS = 50
# The first steps are enough to compare two runs.
_LISTED_LOSSES = 1000
# Measured while a job trains.
_MEASURED = (
    *("train_samples_per_second", "train_tokens_per_second", "peak_memory_bytes", "metric_before"),
    *("tokens_computed", "tokens_useful", "tokens_computed_per_useful"),
)
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "datasets", "numpy", "scikit-learn")


def document(
    setup: Setup, trainer: CpuTrainer, metrics: dict[str, float], tokens: Count, replicas: list[Replica]
) -> dict[str, Any]:
    """The content of result.json, except for the keys that run.py adds.

    `metrics`: of the final weights, empty without evaluation. `tokens`: of all ranks.
    """
    arguments, state = setup.arguments, trainer.state
    losses, metric = trainer.losses.losses, setup.inputs.metric
    trained = setup.inputs.train is not None
    untrained = [entry for entry in state.log_history if "eval_loss" in entry and entry["step"] == 0]
    before: dict[str, Any] = untrained[0] if trained and untrained else {}
    window = int(arguments.logging_steps) if arguments.logging_steps >= 1 else 10
    first, last = window_means(losses, window)
    rate = trainer.progress.speed.rate() if trained else None
    found = {
        "pin": os.environ.get(contract.PIN),
        "image": os.environ.get(contract.IMAGE),
        "task": setup.rows.task.name,
        "nodes": len({replica.node_rank for replica in replicas}),
        "world_size": len(replicas),
        "bf16": bool(arguments.bf16),
        "train_samples_per_second": rate,
        "train_loss_first": first,
        "train_loss_last": last,
        "train_loss_window": min(window, max(1, len(losses) // 2)),
        "train_loss_first_50": _mean(losses[:_FIRST_STEPS]),
        "losses": losses[:_LISTED_LOSSES],
        "metric_name": metric,
        "metric_before": before.get(f"eval_{metric}"),
        "metric_after": metrics.get(f"eval_{metric}"),
        "metrics": {key: value for key, value in metrics.items() if key.startswith("eval_")},
        "train_samples": len(setup.rows.train) if trained else 0,
        "eval_samples": int(metrics.get("eval_samples", 0)),
        "steps": state.global_step if trained else 0,
        "resumed_from": str(setup.checkpoint) if setup.checkpoint else None,
        "labels": setup.rows.labels,
        "peak_memory_bytes": [replica.peak_memory_bytes for replica in replicas],
        "weights_sha256": [replica.weights_sha256 for replica in replicas],
        "config": {**_flags(setup.task), "max_seq_length": setup.inputs.max_seq_length, **arguments.to_dict()},
        "versions": {"python": platform.python_version(), **packages.versions(_PACKAGES)},
        "tokens_computed": tokens.computed or None,
        "tokens_useful": tokens.useful or None,
        "tokens_computed_per_useful": tokens.overhead,
        # Rows differ in length: compare speeds by tokens.
        "train_tokens_per_second": rate * tokens.useful / tokens.rows if rate and tokens.rows else None,
    }
    # A job that had ended is only evaluated again: its measurements stay.
    is_same = rate is None and setup.earlier.get("steps") == state.global_step
    return {**found, **({key: setup.earlier.get(key) for key in _MEASURED} if is_same else {})}


def read(output: Path) -> dict[str, Any]:
    """The result.json of an earlier run. Empty if there is none, or if it is damaged."""
    try:
        found = json.loads((output / folder.RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _flags(task: TaskArguments) -> dict[str, Any]:
    """The values of the flags, without credentials in the addresses of data."""
    return {
        name: without_credentials(value) if isinstance(value, str) else value
        for name, value in asdict(task).items()
    }


def summary(document: dict[str, Any]) -> str:
    """One line for the user."""
    ranks = count(document["world_size"], "rank")
    parts = [f"{count(document['steps'], 'step')} on {ranks} ({document['backend'] or 'no group'})"]
    if document["train_samples_per_second"] is not None:
        parts.append(f"{document['train_samples_per_second']:.1f} samples/s")
    if document["train_loss_first"] is not None:
        parts.append(f"loss {document['train_loss_first']:.4f} -> {document['train_loss_last']:.4f}")
    if document["metric_after"] is not None:
        before = f"{document['metric_before']:.4f} -> " if document["metric_before"] is not None else ""
        parts.append(f"{document['metric_name']} {before}{document['metric_after']:.4f}")
    if document["tokens_computed_per_useful"] is not None:
        parts.append(f"{document['tokens_computed_per_useful']:.2f} tokens computed per useful token")
    return ", ".join(parts)


def write(output: Path, document: dict[str, Any]) -> Path:
    """Write OUTPUT/result.json atomically, so that no reader sees an incomplete file. Returns its path.

    Numbers that JSON does not have (NaN, infinity) become null.
    """
    path = output / folder.RESULT
    partial = output / f".{folder.RESULT}.{os.getpid()}"
    with partial.open("w", encoding="utf-8") as file:
        json.dump(finite(document), file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def window_means(losses: list[float], window: int) -> tuple[float | None, float | None]:
    """The mean loss over the first and over the last `window` steps; over half of the steps if they would
    overlap."""
    size = max(1, min(window, len(losses) // 2))
    return _mean(losses[:size]), _mean(losses[-size:])


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
