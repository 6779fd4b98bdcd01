"""The order of a training run. Every check that can fail on one node alone is agreed on by all ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entrypoints.cli import packages
from entrypoints.cli.errors import UsageError
from entrypoints.machine import cpus
from entrypoints.train.flags.arguments import Parsed, parse, training_arguments
from entrypoints.train.loop import console
from entrypoints.train.model import ipex
from entrypoints.train.output import checkpoints

if TYPE_CHECKING:
    from entrypoints.group.banner import Announce
    from entrypoints.placement.detect import DistributedEnvironment

PRINT_CONFIG = "--print-config"
# The first with `eval_strategy` and with callbacks that have a state of their own.
OLDEST_TRANSFORMERS = "4.41.0"


@dataclass(frozen=True)
class Prepared:
    """A checked command line. `timeout_seconds` is the process group's."""

    parsed: Parsed

    @property
    def backend(self) -> str:
        from entrypoints.group.create import DEFAULT_BACKEND

        return self.parsed.task.backend or DEFAULT_BACKEND

    @property
    def timeout_seconds(self) -> float:
        return float(self.parsed.training["ddp_timeout"])

    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Trains and evaluates. The process group must exist. Returns the exit code; raises UsageError."""
        return _run(self.parsed, environment, announce)


def prepare(argv: list[str]) -> Prepared:
    """Parses and checks the flags. Raises UsageError; prints and exits with 0 for --help and --print-config."""
    check_release(packages.versions(["transformers"]).get("transformers"))
    if "--help" in argv or "-h" in argv:
        from entrypoints.train.flags import help as help_text

        print(help_text.render(everything="all" in argv))
        raise SystemExit(0)
    if PRINT_CONFIG in argv:
        from entrypoints.train.flags import help as help_text

        parsed = parse([word for word in argv if word != PRINT_CONFIG], check=False)
        if os.environ.get("RANK", "0") == "0":
            print(help_text.config(parsed), flush=True)
            for line in parsed.cleaned.notes:
                console.note(line)
        raise SystemExit(0)
    return Prepared(parse(argv))


def check_release(version: str | None) -> None:
    """Raises UsageError where the image's transformers (its version) is older than this trainer."""
    if version and packages.release(version) < packages.release(OLDEST_TRANSFORMERS):
        raise UsageError(
            f"train needs transformers {OLDEST_TRANSFORMERS} or newer, this image has {version}: take a newer "
            "pin, or that release's own example script with run"
        )


def _run(parsed: Parsed, environment: DistributedEnvironment, announce: Announce) -> int:
    from transformers import set_seed

    from entrypoints.group.create import agreed
    from entrypoints.train import run
    from entrypoints.train.data import load as data
    from entrypoints.train.data import types
    from entrypoints.train.loop import optimization
    from entrypoints.train.model import adapters
    from entrypoints.train.model import load as model
    from entrypoints.train.output import folder as output
    from entrypoints.train.output import hub, replicas
    from entrypoints.train.tasks import registry

    task_arguments, rank = parsed.task, environment.rank
    console.prepare(rank)
    for line in parsed.cleaned.notes:
        console.note(line, rank)
    if parsed.training.get("use_ipex"):
        ipex.keep_weights()  # before TrainingArguments creates accelerate's state
    arguments = agreed(lambda: training_arguments(parsed))
    if arguments.bf16:
        warning = console.bf16_warning(replicas.gather(cpus.bf16_of(os.environ)))
        if warning is not None:
            console.note(warning, rank, kind="warning")
    folder = Path(arguments.output_dir)
    resume, overwrite = arguments.resume_from_checkpoint, task_arguments.overwrite_output_dir
    jobs = replicas.gather(output.job_name(os.environ, parsed.flags))  # each node's agent has its own name
    # Rank 0 decides where to begin; the other ranks must see the same checkpoint.
    choice = agreed(lambda: output.choose_start(folder, resume, overwrite, jobs) if rank == 0 else None)
    start = replicas.gather(choice)[0]
    if start.checkpoint is not None:
        agreed(lambda: output.check_checkpoint(start.checkpoint))

    def read() -> types.Rows:
        model.check_folder(str(task_arguments.model_name_or_path))
        adapters.check(task_arguments)
        splits = data.load(task_arguments, arguments.do_train, arguments.do_eval)
        return registry.check_rows(data.task_of(task_arguments, splits), task_arguments, splits)

    rows = agreed(read)
    fingerprints = replicas.gather(rows.fingerprint())
    agreed(lambda: _refuse_different_data(fingerprints, rank))
    set_seed(arguments.seed)  # before the model is made: its head is random, and evaluation alone never syncs it
    shards = environment.world_size if parsed.fsdp else 1
    loaded = agreed(lambda: model.load(rows.task, task_arguments, rows.labels, shards, start.checkpoint))
    made = agreed(lambda: registry.make_job(task_arguments, rows, loaded))
    if made.reduce_logits is not None and "per_device_eval_batch_size" not in parsed.given:
        # A score for every word of the vocabulary at every token is more than what training keeps of a row.
        arguments.per_device_eval_batch_size = arguments.per_device_train_batch_size
    if start.checkpoint is not None:
        config, is_adapter = loaded.model.config.to_dict(), hasattr(loaded.model, "peft_config")
        agreed(lambda: output.check_same_model(start.checkpoint, config, is_adapter))
    if made.train is not None:
        agreed(lambda: optimization.check(arguments, loaded.model))
    if arguments.push_to_hub:
        agreed(lambda: hub.check(arguments) if rank == 0 else None)
    # Checkpoints hold the random states of every rank, each written by its own.
    writes = rank == 0 or arguments.save_strategy != "no"
    agreed(lambda: output.prepare(folder, start if rank == 0 else None, jobs) if writes else None)
    notes = [*start.notes, *rows.notes, *made.notes]
    if start.checkpoint is None:
        notes += loaded.notes
    elif checkpoints.ranks_of(start.checkpoint) not in (0, environment.world_size):
        notes.append("the checkpoint was made with another number of ranks: rows and noise differ from that run's")
    announce(task_arguments.quiet)
    for line in notes:
        console.note(line, rank)
    return run.run(run.Plan(task_arguments, arguments, rows, loaded, made, start.checkpoint), environment)


def _refuse_different_data(fingerprints: list[Any], rank: int) -> None:
    if fingerprints[rank] != fingerprints[0]:
        raise UsageError(
            f"rank {rank} reads other data than rank 0: found {fingerprints[rank]}, expected {fingerprints[0]}; "
            "give every node the same files"
        )
