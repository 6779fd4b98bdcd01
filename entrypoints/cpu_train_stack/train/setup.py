"""Everything that a run needs before its trainer: flags, data and model, checked on every rank.

`set_up` creates TrainingArguments from the flags (in `flags`), reads the rows (`tasks`, `data`), loads the model
(`model`), creates Trainer's input from rows and tokenizer (`tasks`), and prepares the output folder (`output`).

A check can fail on one node only. At the end of each `agreement` block, an error on any rank ends all ranks.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import SchedulerType, Trainer, TrainingArguments, get_scheduler, optimization, set_seed

from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.compat import cpu
from cpu_train_stack.group.banner import Announce
from cpu_train_stack.group.create import agreement, gather
from cpu_train_stack.machine import cpus
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.speed.padding import ANSWERS
from cpu_train_stack.speed.table import ALWAYS_IN_TRAIN, SPEED_UPS
from cpu_train_stack.train import result
from cpu_train_stack.train.data import splits, token_files
from cpu_train_stack.train.data.labels import MULTI_LABEL, REGRESSION
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.types import Rows, TrainerInputs
from cpu_train_stack.train.flags import training_arguments, unsupported, uses
from cpu_train_stack.train.flags.arguments import Parsed, TaskArguments
from cpu_train_stack.train.loop import console
from cpu_train_stack.train.model import adapters, pretrained, quantization
from cpu_train_stack.train.output import checkpoints, folder, hub, weights
from cpu_train_stack.train.tasks import registry

# Flags that only some optimizers use. The other optimizers silently ignore them.
_OPTIMIZER_FLAGS = ("optim_args", "optim_target_modules")
# What Trainer passes to a schedule, and where it resumes.
_OF_TRAINER = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}


@dataclass(frozen=True)
class Setup:
    """The checked input of a run. `rows`: the checked data; `inputs`: the same data as Trainer's input.

    `checkpoint`: where to resume, None to start at the pretrained model. `earlier`: the result.json in the output
    folder before this run.
    """

    task: TaskArguments
    arguments: TrainingArguments
    rows: Rows
    loaded: pretrained.Loaded
    inputs: TrainerInputs
    checkpoint: Path | None
    earlier: dict[str, Any]


def set_up(parsed: Parsed, environment: DistributedEnvironment, announce: Announce) -> Setup:
    """Check the input, load data and model, and prepare the output folder. Ends all ranks if any rank fails."""
    task, rank, world_size = parsed.task, environment.rank, environment.world_size
    console.prepare(rank)
    console.notes(parsed.cleaned.notes, rank)
    cpu.prevent_copies()  # before TrainingArguments creates accelerate's state
    with agreement():
        arguments = training_arguments.create(parsed)
    if arguments.bf16:
        warning = console.bf16_warning(gather(cpus.bf16_of(os.environ)))
        if warning is not None:
            console.note(warning, rank, kind="warning")

    output = Path(arguments.output_dir)
    # On each node, torchrun's agent gives the job another name.
    job_names = gather(folder.job_name(os.environ, parsed.flags))
    resume, overwrite = arguments.resume_from_checkpoint, task.overwrite_output_dir
    with agreement():
        trains = arguments.do_train
        choice = folder.choose_start(output, resume, overwrite, job_names, trains) if rank == 0 else None
    fields = gather(choice and [choice.checkpoint and str(choice.checkpoint), choice.notes, choice.replaces])[0]
    start = folder.RunStart(fields[0] and Path(fields[0]), *fields[1:])

    with agreement():
        if start.checkpoint is not None:
            checkpoints.check(start.checkpoint)  # every rank must see the checkpoint that rank 0 chose
        pretrained.check_folder(str(task.model_name_or_path))
        folder.check_kept(output, start, str(task.model_name_or_path))
        adapters.check(task)
        quantization.check(task, parsed.fsdp, adapters.has_adapter(task))
        # A checkpoint keeps its own labels, in their order.
        model = task.model_name_or_path if start.checkpoint is None else str(start.checkpoint)
        tables = splits.load(task, arguments.do_train, arguments.do_eval)
        rows = registry.read_rows(replace(task, model_name_or_path=model), tables)
        uses.check(parsed, rows.task, registry.TASKS, adapters.base_of(str(task.model_name_or_path)) is not None)
        if arguments.label_smoothing_factor and rows.problem_type in (MULTI_LABEL, REGRESSION):
            raise UsageError(
                "--label_smoothing_factor is for one class per row, but the labels are lists or numbers: remove it"
            )
    fingerprints = gather(rows.fingerprint())
    with agreement():
        _refuse_different_data(fingerprints, rank)

    with agreement():
        off = catalogue.switched_off((), adapt=(ANSWERS,))
        situation = Situation((), catalogue.versions(), "", rank, world_size, in_train=True)
        catalogue.install(situation, off - ALWAYS_IN_TRAIN, SPEED_UPS)
    set_seed(arguments.seed)  # before the model is loaded: a new head has random weights
    with agreement():  # before the model: to load a sharded model is a collective
        tokenizer = pretrained.load_tokenizer(task, pads=not rows.task.is_decoder)
    with agreement():
        shards = world_size if parsed.fsdp else 1
        loaded = pretrained.load(task, tokenizer, rows, arguments.bf16, shards, start.checkpoint)
    tokens = TokenFolder(output / token_files.FOLDER)
    with agreement():
        inputs = registry.make_inputs(task, rows, loaded, tokens)
    used, token_notes = zip(*gather(([*map(str, tokens.used)], tokens.notes)))  # all ranks have opened their files
    if environment.local_rank == 0:
        tokens.clean(used)
    with agreement():
        inputs.check_model(loaded.model)
    if inputs.reduce_logits is not None and "per_device_eval_batch_size" not in parsed.given:
        # The scores of all words of the vocabulary at every token take more memory than training does.
        arguments.per_device_eval_batch_size = arguments.per_device_train_batch_size
    with agreement():
        if start.checkpoint is not None:
            config, has_adapter = loaded.model.config.to_dict(), hasattr(loaded.model, "peft_config")
            checkpoints.check_same_model(start.checkpoint, config, has_adapter)
            weights.check(start.checkpoint, loaded.model)
        _check_batches(arguments, inputs)
        if inputs.train is not None:
            unsupported.check_model(arguments, loaded.model)
            _check_optimizer(arguments, loaded.model)
    with agreement():
        if arguments.push_to_hub and rank == 0:
            hub.check(arguments)
    with agreement():
        earlier = result.read(output)
        # Every rank writes its random state into a checkpoint.
        if rank == 0 or arguments.save_strategy != "no":
            folder.prepare(output, start if rank == 0 else None, job_names)

    announce(task.quiet)
    console.notes([*start.notes, *rows.notes, *inputs.notes, *dict.fromkeys(chain(*token_notes))], rank)
    if start.checkpoint is None:
        console.notes(loaded.notes, rank)
    elif (saved_by := checkpoints.world_size_of(start.checkpoint)) not in (0, world_size):
        console.note(f"{saved_by} ranks saved the checkpoint: rows and dropout differ from that run", rank)
    return Setup(task, arguments, rows, loaded, inputs, start.checkpoint, earlier)


def _refuse_different_data(fingerprints: list[Any], rank: int) -> None:
    if fingerprints[rank] != fingerprints[0]:
        raise UsageError(
            f"rank {rank} reads other data than rank 0: found {fingerprints[rank]}, expected {fingerprints[0]}; "
            "give every node the same files"
        )


def _check_batches(arguments: TrainingArguments, inputs: TrainerInputs) -> None:
    """Raise UsageError if no rank would have a batch, or if the ranks cannot split a batch."""
    is_shared = arguments.accelerator_config.split_batches
    for kind, size, split in (
        ("train", arguments.train_batch_size, inputs.train),
        ("eval", arguments.eval_batch_size, inputs.validation),
    ):
        if split is not None and is_shared and size % arguments.world_size:
            raise UsageError(
                f"--accelerator_config split_batches with --per_device_{kind}_batch_size {size}, expected a "
                f"multiple of the number of ranks, {arguments.world_size}: change the batch size, or remove "
                "split_batches"
            )
    if inputs.train is None:
        return
    rows = len(inputs.train)
    needed = arguments.train_batch_size * (1 if is_shared else arguments.world_size)
    if arguments.dataloader_drop_last and rows < needed:
        raise UsageError(
            f"--dataloader_drop_last with {rows} rows, expected {needed} or more, a batch for each rank: remove "
            "it, or lower --per_device_train_batch_size"
        )


def _check_optimizer(arguments: TrainingArguments, model: Any) -> None:
    """Check the optimizer and the schedule, which Trainer creates last.

    Raises UsageError for a missing package, and for a missing or unknown argument.
    """
    name = str(getattr(arguments.optim, "value", arguments.optim))  # Hugging Face's enumerations
    try:
        chosen = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(f"--optim {name}: {one_line(error)}") from error
    for flag in _OPTIMIZER_FLAGS:
        if getattr(arguments, flag, None):
            without = copy.copy(arguments)
            setattr(without, flag, None)
            if Trainer.get_optimizer_cls_and_kwargs(without, model) == chosen:
                raise UsageError(f"--optim {name} does not use --{flag}: remove it, or choose another --optim")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    schedule = str(getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type))
    used, options = f"--lr_scheduler_type {schedule}", arguments.lr_scheduler_kwargs or {}
    unsupported.check_keys("lr_scheduler_kwargs", options, _options_of(schedule), used)
    if schedule == SchedulerType.INVERSE_SQRT.value:
        training_arguments.bind_options(optimization.TYPE_TO_SCHEDULER_FUNCTION, SchedulerType(schedule), options)
    try:
        get_scheduler(schedule, optimizer, 0, 1, scheduler_specific_kwargs=options)
    except (ImportError, ValueError, TypeError, ArithmeticError) as error:
        given = f" with --lr_scheduler_kwargs {json.dumps(options)}" if options else ""
        raise UsageError(f"{used}{given}: {one_line(error)}") from error


def _options_of(schedule: str) -> set[str]:
    """The keys that --lr_scheduler_kwargs may have."""
    classes = {
        "reduce_lr_on_plateau": torch.optim.lr_scheduler.ReduceLROnPlateau,
        "greedy": getattr(optimization, "GreedyLR", None),  # since transformers 5
    }
    made_by = classes.get(schedule) or optimization.TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(schedule)]
    return {*inspect.signature(made_by).parameters} - _OF_TRAINER
