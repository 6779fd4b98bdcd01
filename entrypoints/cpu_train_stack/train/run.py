"""One rank of a training run: set up, train, evaluate, compare the ranks, and write result.json.

`setup.set_up` checks the input and loads data and model. `run` creates the trainer from them, runs it, and writes
result.json on rank 0 (`result`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch.distributed as dist
from transformers import TrainingArguments

from cpu_train_stack import catalogue, contract
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.group.banner import Announce
from cpu_train_stack.group.create import agreement, gather
from cpu_train_stack.machine import cgroups, last_checkpoint
from cpu_train_stack.operators.output_layer import OutputLayer, is_last, output_layer_of
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.records.tokens import Count
from cpu_train_stack.speed.table import OUTPUT_LAYER
from cpu_train_stack.train import result
from cpu_train_stack.train.flags import unsupported
from cpu_train_stack.train.flags.arguments import Parsed
from cpu_train_stack.train.loop import console, ddp
from cpu_train_stack.train.loop.stopping import StopOnRequest
from cpu_train_stack.train.loop.trainer import CpuTrainer
from cpu_train_stack.train.model import adapters, footprint, memory, sharding
from cpu_train_stack.train.output import checkpoints, folder, hub, replicas
from cpu_train_stack.train.setup import Setup, set_up


def run(parsed: Parsed, environment: DistributedEnvironment, announce: Announce) -> int:
    """Train and evaluate. The process group must exist.

    Returns 0, or 1 with a line on stderr if the ranks ended with different weights or a push failed, or
    STOPPED_EXIT_CODE if the training ended early, with a checkpoint.
    """
    setup = set_up(parsed, environment, announce)
    arguments, inputs, model = setup.arguments, setup.inputs, setup.loaded.model
    output, is_sharded = Path(arguments.output_dir), sharding.is_sharded(model)
    if inputs.train is not None and environment.world_size > 1 and not is_sharded:
        ddp.tune(arguments, model, inputs.collate([memory.short_row(inputs, 0)]), inputs.loss)
    elif environment.world_size == 1:
        ddp.ignore_frozen(model)
    with agreement():
        trainer = _create_trainer(setup)

    # A sharded model gathers its layers one after the other: what it keeps says little about one rank's memory.
    checks_memory = inputs.train is not None and not is_sharded
    expected = _check_memory(setup, trainer, environment) if checks_memory else None
    code = 0
    began = time.time()
    if inputs.train is not None:
        stop = _stop_on_request(trainer)
        trainer.train_from(setup.checkpoint)
        if stop is not None and stop.end(environment.rank):
            console.note(f"stopped at step {trainer.state.global_step}, with a checkpoint", environment.rank)
            return contract.STOPPED_EXIT_CODE
        with checkpoints.full_disk_reported(output, "the final weights", arguments.should_save):
            trainer.save_model(_internal_call=True)  # without a push
        if arguments.push_to_hub:
            code = hub.push(trainer)
        if environment.rank == 0:
            folder.share_weights(output)
    elif setup.checkpoint is not None:
        trainer.load(setup.checkpoint)
    ended = time.time()
    with _unchanged(model) if arguments.bf16_full_eval else contextlib.nullcontext():
        metrics = _evaluate(trainer, arguments) if inputs.validation is not None else {}

    tokens = sum((Count(**found) for found in gather(vars(trainer.clock.tokens))), Count())
    reports = replicas.report(model, environment.rank, environment.node_rank, setup.task.check_replicas)
    difference = replicas.difference(reports)
    if environment.rank == 0 and difference is not None:
        say(difference)
    if difference is not None:
        return 1
    if environment.rank > 0:
        return code

    document = {
        **result.document(setup, trainer, metrics, tokens, reports),
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "launcher": environment.launcher,
        "fsdp": is_sharded,
        "expected_memory_bytes": expected,
        "adapter": adapters.describe(model) if hasattr(model, "peft_config") else None,
        "train_started_at": began,  # in seconds since the epoch: `./inv demo` computes the start-up time from it
        "seconds": {
            "build": None,
            "start": round(began - psutil.Process().create_time(), 3),
            "train": round(ended - began, 3),
        },
    }
    with checkpoints.full_disk_reported(output, folder.RESULT):
        path = result.write(output, document)
    if setup.task.merge_adapter:
        then = (
            f"merge it: train --model_name_or_path {output} --validation_file FILE --output_dir FOLDER "
            "--merge_adapter"
        )
        with checkpoints.full_disk_reported(output, "the merged model", then=then):
            merged = adapters.save_merged(trainer.model, setup.loaded.tokenizer, output)
            folder.share_weights(merged)
            result.write(output, {**document, "merged": str(merged)})
        say(f"merged: {merged}")
    say(f"done: {result.summary(document)}; {path}")
    return code


def _check_memory(setup: Setup, trainer: CpuTrainer, environment: DistributedEnvironment) -> int:
    """Print the memory that each rank will need, in bytes, and return it. Raises UsageError if it cannot fit."""
    arguments, inputs, model = setup.arguments, setup.inputs, setup.loaded.model
    found = footprint.measure(trainer, inputs, trainer.output)
    limit = cgroups.read_limits().memory
    available = min(psutil.virtual_memory().total, limit.limit_bytes if limit else sys.maxsize)
    flags = memory.Flags(
        rows=arguments.per_device_train_batch_size,
        recomputes=arguments.gradient_checkpointing or not unsupported.can_recompute(model),
        trains_all=not hasattr(model, "peft_config"),
        ranks=environment.world_size,
    )
    with agreement():
        problem = memory.refusal(found, available, environment.local_world_size, flags)
        if problem is not None:
            raise UsageError(problem)
    console.note(memory.line(found), environment.rank)
    return found.needed


def _create_trainer(setup: Setup) -> CpuTrainer:
    """Raises UsageError for combinations that Trainer refuses."""
    arguments, inputs = setup.arguments, setup.inputs
    options: dict[str, Any] = {}
    if inputs.loss is not None:
        inputs.loss.smoothing = float(arguments.label_smoothing_factor)
        options["compute_loss_func"] = inputs.loss
        options["preprocess_logits_for_metrics"] = inputs.reduce_logits
    try:
        return CpuTrainer(
            exchange=setup.task.ddp_comm_hook,
            output=_output_layer(setup),
            write=inputs.write,
            model=setup.loaded.model,
            args=arguments,
            train_dataset=inputs.train,
            eval_dataset=inputs.validation,
            data_collator=inputs.collate,
            processing_class=setup.loaded.tokenizer,
            compute_metrics=inputs.compute_metrics,
            **options,
        )
    except (ImportError, ValueError) as error:
        raise UsageError(one_line(error)) from error


def _stop_on_request(trainer: CpuTrainer) -> StopOnRequest | None:
    """What ends the training early. None if no rank has the variable, or without regular checkpoints from
    which a run can resume."""
    mine = [str(file) for file in last_checkpoint.files_of(os.environ)]
    files = {Path(file) for found in gather(mine) for file in found}
    if not files or trainer.args.save_strategy in ("no", "best") or trainer.args.save_only_model:
        return None
    stop = StopOnRequest(sorted(files), last_checkpoint.ready_file(os.environ))
    trainer.add_callback(stop)
    return stop


def _output_layer(setup: Setup) -> OutputLayer | None:
    """The output layer of a language model, None if torch computes all of its scores."""
    arguments, model, shift = setup.arguments, setup.loaded.model, setup.inputs.shift
    differs = arguments.label_smoothing_factor or getattr(arguments, "use_ipex", False)
    if shift is None or differs or OUTPUT_LAYER in catalogue.switched_off(()):
        return None
    # Labels that are not words, and decoders whose tokens all have a label.
    if model.get_output_embeddings() is None or model.config.is_encoder_decoder:
        return None
    output = output_layer_of(model, shift)
    is_supported = output is not None and is_last(output, model)
    sharding.reshard(model)
    if is_supported:
        return output
    console.note(
        f"{type(model).__name__} computes scores for tokens without a label too: its output layer is not a plain "
        "linear layer, or the model changes the scores",
        arguments.process_index,
    )
    return None


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Give the model its weights back: with --bf16_full_eval, Trainer rounds them for the last evaluation."""
    before = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


def _evaluate(trainer: CpuTrainer, arguments: TrainingArguments) -> dict[str, float]:
    """The metrics of the final weights: those of this run's last evaluation if no step followed it."""
    step, metrics = trainer.evaluated or (None, {})
    if step == trainer.state.global_step and not arguments.load_best_model_at_end:
        return dict(metrics)
    return dict(trainer.evaluate())
