"""Trains, evaluates, compares the ranks, and writes down what happened."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch.distributed as dist

from entrypoints import contract
from entrypoints.cli import packages
from entrypoints.cli.errors import UsageError, one_line
from entrypoints.group.create import agreed
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.train.data.types import Job, Rows
from entrypoints.train.flags.arguments import TaskArguments
from entrypoints.train.loop import ddp
from entrypoints.train.loop.trainer import CpuTrainer
from entrypoints.train.model import adapters, sharding
from entrypoints.train.model.load import Loaded
from entrypoints.train.output import folder, hub, replicas, result
from entrypoints.train.tasks.tokens import Count, TokenLoss

if TYPE_CHECKING:
    from transformers import TrainingArguments

_FIRST_STEPS = 50
# More would only make the file long; parity is judged on the first steps.
_LISTED_LOSSES = 1000
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "datasets", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Plan:
    """Everything that was checked before the first step. `checkpoint` is where to go on from, or None."""

    task: TaskArguments
    training: TrainingArguments
    rows: Rows
    loaded: Loaded
    job: Job
    checkpoint: Path | None


def run(plan: Plan, environment: DistributedEnvironment) -> int:
    """Returns 0, or 1 with a line on stderr if the ranks ended with different weights or a push failed."""
    arguments, job, model = plan.training, plan.job, plan.loaded.model
    if job.train is not None and environment.world_size > 1 and not sharding.is_sharded(model):
        ddp.tune(arguments, model, job.collate([job.train[0]]))
    trainer = agreed(lambda: _trainer(plan))
    code = 0
    began = time.time()
    if job.train is not None:
        trainer.train_from(plan.checkpoint)
        trainer.save_model(_internal_call=True)  # which pushes nothing
        if arguments.push_to_hub:
            code = hub.push(trainer)
        if environment.rank == 0:
            folder.share_weights(Path(arguments.output_dir))
    trained = time.time()
    after = _evaluate(trainer, arguments) if job.validation is not None else {}

    counted = sum(replicas.gather(trainer.tokens), Count())
    reports = replicas.report(model, environment.rank, environment.node_rank, plan.task.check_replicas)
    difference = replicas.difference(reports)
    if difference is not None:
        if environment.rank == 0:
            print(difference, file=sys.stderr, flush=True)
        return 1
    if environment.rank == 0:
        document = _document(plan, trainer, environment, after, reports)
        document["tokens_computed"] = counted.computed or None
        document["tokens_useful"] = counted.useful or None
        document["tokens_computed_per_useful"] = counted.overhead
        rate, rows = document["train_samples_per_second"], counted.rows
        # Rows differ in length, so tokens are what speeds are compared by.
        document["train_tokens_per_second"] = rate * counted.useful / rows if rate and rows else None
        document["adapter"] = adapters.describe(model) if hasattr(model, "peft_config") else None
        document["train_started_at"] = began  # seconds since the epoch: the demo tells the start-up from it
        document["seconds"] = {
            "build": None,
            "start": round(began - psutil.Process().create_time(), 3),
            "train": round(trained - began, 3),
        }
        if plan.task.merge_adapter:
            merged = adapters.save_merged(trainer.model, plan.loaded.tokenizer, Path(arguments.output_dir))
            folder.share_weights(merged)
            document["merged"] = str(merged)
        path = result.write(Path(arguments.output_dir), document)
        print(f"done: {_summary(document)}; {path}", file=sys.stderr, flush=True)
    return code


def _trainer(plan: Plan) -> CpuTrainer:
    """Raises UsageError for what Trainer refuses."""
    arguments, job = plan.training, plan.job
    try:
        return CpuTrainer(
            exchange=plan.task.ddp_comm_hook,
            model=plan.loaded.model,
            args=arguments,
            train_dataset=job.train,
            eval_dataset=job.validation,
            data_collator=job.collate,
            processing_class=plan.loaded.tokenizer,
            compute_metrics=job.compute_metrics,
            **_token_options(job, arguments),
        )
    except (ImportError, ValueError) as error:
        raise UsageError(one_line(error)) from error


def _token_options(job: Job, arguments: TrainingArguments) -> dict[str, Any]:
    """Trainer's options for a loss that is a mean over tokens."""
    if job.shift is None:
        return {}
    return {
        "compute_loss_func": TokenLoss(job.shift, float(arguments.label_smoothing_factor)),
        "preprocess_logits_for_metrics": job.reduce_logits,
    }


def _evaluate(trainer: CpuTrainer, arguments: TrainingArguments) -> dict[str, float]:
    """The metrics of the weights at the end: those of the last evaluation if no step came after it."""
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    if history and history[-1]["step"] == trainer.state.global_step and not arguments.load_best_model_at_end:
        return dict(history[-1])
    return dict(trainer.evaluate())


def _document(
    plan: Plan,
    trainer: CpuTrainer,
    environment: DistributedEnvironment,
    after: dict[str, float],
    reports: list[replicas.Replica],
) -> dict[str, Any]:
    arguments, losses, name = plan.training, trainer.losses.losses, plan.job.metric
    trained = plan.job.train is not None
    untrained = [entry for entry in trainer.state.log_history if "eval_loss" in entry and entry["step"] == 0]
    before: dict[str, Any] = untrained[0] if trained and untrained else {}
    window = int(arguments.logging_steps) if arguments.logging_steps >= 1 else 10
    first, last = result.window_means(losses, window)
    return {
        "pin": os.environ.get(contract.PIN),
        "image": os.environ.get(contract.IMAGE),
        "task": plan.rows.task,
        # What ran, not what was asked for.
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "nodes": len({report.node_rank for report in reports}),
        "world_size": len(reports),
        "launcher": environment.launcher,
        "bf16": bool(arguments.bf16),
        "fsdp": sharding.is_sharded(plan.loaded.model),
        "train_samples_per_second": trainer.speed.rate() if trained else None,
        "train_loss_first": first,
        "train_loss_last": last,
        "train_loss_window": min(window, max(1, len(losses) // 2)),
        "train_loss_first_50": result.mean(losses[:_FIRST_STEPS]),
        "losses": losses[:_LISTED_LOSSES],
        "metric_name": name,
        "metric_before": before.get(f"eval_{name}"),
        "metric_after": after.get(f"eval_{name}"),
        "metrics": {key: value for key, value in after.items() if key.startswith("eval_")},
        "train_samples": len(plan.rows.train) if trained else 0,
        "eval_samples": int(after.get("eval_samples", 0)),
        "steps": trainer.state.global_step if trained else 0,
        "resumed_from": str(plan.checkpoint) if plan.checkpoint else None,
        "labels": plan.rows.labels,
        "peak_memory_bytes": [report.peak_memory_bytes for report in reports],
        "weights_sha256": [report.weights_sha256 for report in reports],
        "config": {**asdict(plan.task), "max_seq_length": plan.job.max_seq_length, **arguments.to_dict()},
        "versions": {"python": platform.python_version(), **packages.versions(_PACKAGES)},
    }


def _summary(document: dict[str, Any]) -> str:
    parts = [f"{document['steps']} steps on {document['world_size']} ranks ({document['backend'] or 'no group'})"]
    if document["train_samples_per_second"] is not None:
        parts.append(f"{document['train_samples_per_second']:.1f} samples/s")
    if document["train_loss_first"] is not None:
        parts.append(f"loss {document['train_loss_first']:.4f} -> {document['train_loss_last']:.4f}")
    if document["metric_after"] is not None:
        before = f"{document['metric_before']:.4f} -> " if document["metric_before"] is not None else ""
        parts.append(f"{document['metric_name']} {before}{document['metric_after']:.4f}")
    if document["tokens_computed_per_useful"] is not None:
        parts.append(f"{document['tokens_computed_per_useful']:.2f} tokens computed for each useful one")
    return ", ".join(parts)
