"""The command line: Hugging Face's own training flags, beside the few that name the task and its data.

Needs transformers at parse time only; TrainingArguments itself is made after the process group
(see `training_arguments`), because accelerate would otherwise make a group of its own.
"""

# ruff: noqa: UP045 - HfArgumentParser evaluates these annotations, on Python 3.9 too.
from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from entrypoints import contract
from entrypoints.cli import config_files, packages
from entrypoints.cli.errors import UsageError, one_line
from entrypoints.train.flags import old_flags, unsupported

if TYPE_CHECKING:
    from transformers import TrainingArguments

TASKS = ("text-classification", "question-answering", "token-classification", "text-generation", "fill-mask")

# Where this trainer's defaults differ from Hugging Face's, and why.
DEFAULTS: dict[str, Any] = {
    "output_dir": None,  # required: a default folder would mix runs
    "per_device_eval_batch_size": 32,  # evaluation keeps no activations
    "logging_steps": 10,  # a CPU step takes a second, not milliseconds
    "save_total_limit": 2,  # the last checkpoint and one to fall back on
    "eval_strategy": "epoch",
    "log_level_replica": "passive",  # by default, ranks above 0 log more than rank 0
    "report_to": "none",
}


def _flag(help_text: str, default: Any = None, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass
class TaskArguments:
    """What to train on what. Names are those of Hugging Face's run_glue and run_qa."""

    task: Optional[str] = _flag(
        "What to train. Inferred from the data's columns if left out.", choices=list(TASKS)
    )
    model_name_or_path: Optional[str] = _flag("Folder with a pretrained model, or a name on the hub.")
    tokenizer_name: Optional[str] = _flag("Folder or hub name of the tokenizer, if it is not the model's.")
    model_revision: str = _flag("Branch, tag or commit of the model on the hub.", "main")
    dataset_name: Optional[str] = _flag("Name of a data set on the hub.")
    dataset_config_name: Optional[str] = _flag("Configuration of that data set.")
    train_file: Optional[str] = _flag("Training data: csv, tsv, json, jsonl, parquet or txt (a text a line).")
    validation_file: Optional[str] = _flag("Evaluation data, in the same format.")
    text_column_names: Optional[str] = _flag("Column with the text, or two for pairs: 'sentence1,sentence2'.")
    label_column_name: str = _flag("Column with the label.", "label")
    max_seq_length: Optional[int] = _flag(
        "Longest input in tokens. 128 for classification, 384 for questions, 512 for fill-mask, 1024 for "
        "text-generation; never above the model's limit."
    )
    doc_stride: int = _flag("Tokens that two windows over one long context share.", 128)
    max_answer_length: int = _flag("Longest answer in tokens.", 30)
    n_best_size: int = _flag("Start and end positions that are combined into candidates.", 20)
    version_2_with_negative: bool = _flag("Some questions have no answer in their context.", False)
    null_score_diff_threshold: float = _flag("How far 'no answer' must lead to be chosen.", 0.0)
    packing: bool = _flag("text-generation: several rows in one sequence, each seeing itself alone.", False)
    completion_only_loss: Optional[bool] = _flag(
        "text-generation: learn the assistant's turns or completions alone (default), or with false everything."
    )
    chat_template_path: Optional[str] = _flag(
        "Jinja file with the chat template, if the tokenizer's is not wanted."
    )
    mlm_probability: float = _flag("fill-mask: share of the tokens that are to be guessed.", 0.15)
    use_peft: bool = _flag("Train a LoRA adapter beside the frozen model.", False)
    lora_r: int = _flag("Rank of the adapter's matrices.", 16)
    lora_alpha: int = _flag("The adapter is scaled by lora_alpha / lora_r.", 32)
    lora_dropout: float = _flag("Dropout before the adapter.", 0.0)
    lora_target_modules: Optional[str] = _flag(
        "Layers that get an adapter: 'q_proj,v_proj'. All linear ones but the head if left out."
    )
    merge_adapter: bool = _flag("Write OUTPUT_DIR/merged too: the model with the adapter in its weights.", False)
    pad_to_max_length: bool = _flag("Pad every input to max_seq_length, not to the longest of its batch.", False)
    max_train_samples: Optional[int] = _flag("Use only the first rows for training.")
    max_eval_samples: Optional[int] = _flag("Use only the first rows for evaluation.")
    overwrite_output_dir: bool = _flag("Replace the checkpoints and the result of an earlier run.", False)
    ddp_comm_hook: Optional[str] = _flag(
        "How gradients are exchanged: as bf16, half of the bytes; or as torch does by itself, which sends"
        " the whole gradient of a word embedding and not the rows in use.",
        choices=["bf16", "torch"],
    )
    backend: Optional[str] = _flag("Backend of the process group.")
    quiet: bool = _flag("No lines about ranks, cores and transport at the start.", False)
    check_replicas: bool = _flag("After training, compare the weights of all ranks.", True)


@dataclass(frozen=True)
class Parsed:
    """Checked flags. `training`: the values for TrainingArguments, which is not created yet. `cleaned`: the flags
    from old guides."""

    task: TaskArguments
    training: dict[str, Any]
    given: frozenset[str]
    cleaned: old_flags.Cleaned

    @property
    def flags(self) -> dict[str, Any]:
        """The values of the given flags, by name."""
        values = {**asdict(self.task), **self.training}
        return {name: values[name] for name in sorted(self.given & values.keys())}

    @property
    def fsdp(self) -> bool:
        return unsupported.wants_sharding(self.training.get("fsdp"))


class _Parser(argparse.ArgumentParser):
    """Hugging Face's parser says errors with the usage of 150 flags above them; one line is enough."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{' '.join(message.split())}; train --help lists the flags")


def make_parser() -> argparse.ArgumentParser:
    """The complete parser. Imports transformers."""
    from transformers import HfArgumentParser, TrainingArguments

    parser_class: Any = type("Parser", (_Parser, HfArgumentParser), {})
    parser: argparse.ArgumentParser = parser_class(
        [TaskArguments, TrainingArguments],
        allow_abbrev=False,
        add_help=False,
        prog="train",
        conflict_handler="resolve",  # transformers 4 has --overwrite_output_dir too
    )
    known = {action.dest for action in parser._actions}
    parser.set_defaults(**{name: value for name, value in DEFAULTS.items() if name in known})
    return parser


def parse(argv: list[str], check: bool = True) -> Parsed:
    """Parses everything that needs neither data nor model, and checks it. Raises UsageError.

    A config file may stand before the flags, which win over it.
    """
    file, words = config_files.split(argv)
    parser = make_parser()
    own = frozenset(action.dest for action in parser._actions)
    known = own | old_flags.ANSWERED
    filed = [_checked(entry, parser, known, own) for entry in (config_files.read(file) if file else [])]
    cleaned = old_flags.clean(
        [*(word for entry in filed for word in entry), *words], packages.installed(packages.IPEX), own
    )
    namespace, rest = parser.parse_known_args(cleaned.argv)
    if rest:
        # A value behind an unknown flag is left over too: name the flag, not its value.
        first = next((argument for argument in rest if argument.startswith("--")), rest[0])
        raise old_flags.unknown(first, own)
    values = vars(namespace)
    named = [name for name in map(old_flags.name_of, cleaned.argv) if name is not None]
    given = frozenset(name if name in values else name[len("no_") :] for name in named)  # --no_bf16 gives bf16
    names = {item.name for item in fields(TaskArguments)}
    task = TaskArguments(**{name: values[name] for name in names})
    training = {name: value for name, value in values.items() if name not in names}
    if check:
        _check(task, training, given)
    return Parsed(task, training, given, cleaned)


def _checked(
    entry: config_files.Entry, parser: argparse.ArgumentParser, known: frozenset[str], own: frozenset[str]
) -> tuple[str, ...]:
    """The entry as flags, or a UsageError that names its line in the file. `own`: this release's flags."""
    if entry.key not in known:
        raise UsageError(f"{entry.where}: {old_flags.unknown_key(entry.key, own)}")
    try:
        _, rest = parser.parse_known_args(old_flags.clean(entry.argv, packages.installed(packages.IPEX), own).argv)
    except UsageError as error:
        raise UsageError(f"{entry.where}: {error}") from error
    if rest:
        raise UsageError(f"{entry.where}: '{entry.key}' has {len(entry.argv) - 1} values, expected one")
    return entry.argv


def _check(task: TaskArguments, training: dict[str, Any], given: frozenset[str]) -> None:
    if task.model_name_or_path is None:
        raise UsageError("--model_name_or_path is missing: write a folder with a pretrained model, or a hub name")
    if not training.get("output_dir"):
        raise UsageError("--output_dir is missing: write the folder for checkpoints, weights and result.json")
    if not training["do_train"] and not training["do_eval"]:
        for name, file in (("do_train", task.train_file), ("do_eval", task.validation_file)):
            training[name] = name not in given and (file is not None or task.dataset_name is not None)
    if "eval_strategy" in given and training["eval_strategy"] != "no":
        training["do_eval"] = True  # in addition to training
    if unsupported.wants_sharding(training.get("fsdp")) and (task.merge_adapter or task.ddp_comm_hook):
        name = "merge_adapter" if task.merge_adapter else "ddp_comm_hook"
        raise UsageError(f"--fsdp and --{name} exclude each other: no rank has the whole model, drop one of them")
    if training.get("fsdp_config"):
        raise UsageError("--fsdp_config has no meaning here: --fsdp full_shard shards all layers, drop it")
    if task.dataset_name is not None and (task.train_file or task.validation_file):
        raise UsageError("--dataset_name and --train_file/--validation_file exclude each other: write one of them")
    if task.dataset_name is None:
        if training["do_train"] and task.train_file is None:
            raise UsageError("--do_train needs data: write --train_file FILE or --dataset_name NAME")
        if training["do_eval"] and task.validation_file is None:
            name = "do_eval" if "eval_strategy" not in given else f"eval_strategy {training['eval_strategy']}"
            raise UsageError(f"--{name} needs data: write --validation_file FILE or --dataset_name NAME")
    if not training["do_train"] and not training["do_eval"]:
        raise UsageError("nothing to do: write --train_file and --validation_file, or --dataset_name")
    unsupported.check(training)
    positive = {
        "max_seq_length": task.max_seq_length,
        "max_train_samples": task.max_train_samples,
        "max_eval_samples": task.max_eval_samples,
        "max_answer_length": task.max_answer_length,
        "n_best_size": task.n_best_size,
        "lora_r": task.lora_r,
        "lora_alpha": task.lora_alpha,
        **{
            name: training[name]
            for name in (
                "per_device_train_batch_size",
                "per_device_eval_batch_size",
                "gradient_accumulation_steps",
                "num_train_epochs",
                "ddp_timeout",
            )
        },
    }
    for name, value in positive.items():
        if value is not None and value <= 0:
            raise UsageError(f"--{name} is {value}, expected a number above 0")
    if not 0 < task.mlm_probability < 1:
        raise UsageError(f"--mlm_probability is {task.mlm_probability}, expected a share between 0 and 1")
    if task.doc_stride < 0:
        raise UsageError(f"--doc_stride is {task.doc_stride}, expected 0 or more")


def training_arguments(parsed: Parsed) -> TrainingArguments:
    """Makes Hugging Face's TrainingArguments. Call it after the process group was made.

    Raises UsageError for the combinations that Hugging Face refuses.
    """
    from transformers import TrainingArguments

    values = dict(parsed.training)
    parsed.cleaned.export()
    # Without it accelerate sees no distributed CPU job: every rank would train alone on all of the data.
    values["use_cpu"] = True
    if not values["do_eval"] and "eval_strategy" not in parsed.given:
        values["eval_strategy"] = "no"
    if values["load_best_model_at_end"] and "save_strategy" not in parsed.given:
        values["save_strategy"] = values["eval_strategy"]
        values["save_steps"] = values["eval_steps"] or values["logging_steps"]
    if values["data_seed"] is None:
        # The order of the data must be the same on every rank, whatever else draws from torch's generator.
        values["data_seed"] = values["seed"]
    if "average_tokens_across_devices" in values and "average_tokens_across_devices" not in parsed.given:
        values["average_tokens_across_devices"] = True  # or ranks with few tokens would weigh as much as others
    if values.get("gradient_checkpointing") and values.get("gradient_checkpointing_kwargs") is None:
        # The other kind needs inputs with gradients, which a frozen model under an adapter has not.
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if "dataloader_num_workers" not in parsed.given:
        values["dataloader_num_workers"] = int(os.environ.get(contract.DATALOADER_WORKERS, "0"))
    _check_reports(values["report_to"])
    unsupported.check_compiler_names(values)
    unsupported.check_compiler(values)
    # Progress is ours (see progress.py); Hugging Face would print dictionaries.
    values["disable_tqdm"] = True
    values.pop("ddp_backend")
    values.pop("fsdp", None)  # Trainer would take it for accelerate's, which does nothing on CPUs
    try:
        arguments = TrainingArguments(**values)
    except json.JSONDecodeError as error:
        raise UsageError(f"a flag's value is broken JSON: {error.msg} in '{error.doc}'") from error
    except (ValueError, ImportError, TypeError, OSError) as error:
        # Hugging Face prints its enumerations as IntervalStrategy.STEPS.
        raise UsageError(re.sub(r"\b\w+Strategy\.", "", one_line(error))) from error
    unsupported.check_derived(arguments)
    return arguments


def _check_reports(names: Any) -> None:
    from transformers.integrations import get_available_reporting_integrations

    available = [*get_available_reporting_integrations(), "none", "all"]
    for name in names if isinstance(names, list) else [names]:
        if name not in available:
            raise UsageError(f"--report_to {name} is not installed here, expected one of: {', '.join(available)}")
