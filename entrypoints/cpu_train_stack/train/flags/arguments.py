"""Parse the command line of `train`: Hugging Face's training flags, and flags for the task and its data.

Imports transformers only when it parses. training_arguments.py creates TrainingArguments later.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, make_dataclass
from typing import Any, Callable, NoReturn, Optional

from cpu_train_stack import contract
from cpu_train_stack.cli import config_files, packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import Parser
from cpu_train_stack.compat.rewriting import name_of
from cpu_train_stack.train.flags import old_flags, unsupported
from cpu_train_stack.train.flags.flag import CHECKS, COUNT, FlagRange, checks, flag


@dataclass(frozen=True)
class Task:
    """A task of `train`. Its module in train/tasks defines it, and also has `read_rows` and `make_inputs`.

    `auto_class`: transformers' class of the model. `peft_type`: peft's name of the task. `length`: the default of
    --max_seq_length. `arguments`: has its own flags as fields. `flags`: the names of other flags that it uses,
    unlike some other task. `columns`: of the data, in words. `fits`: whether a table has them, (table, name of the
    column with labels) -> bool; None if only --task chooses the task. `order`: of several tasks that fit, the
    first is chosen. `takes_text`: whether one column of texts is enough with --task.
    """

    name: str
    order: int
    auto_class: str
    peft_type: str | None
    length: int
    flags: str
    arguments: type[TaskArguments]
    columns: str = ""
    fits: Callable[[Any, str], bool] | None = None
    takes_text: bool = False

    @property
    def is_decoder(self) -> bool:
        """Whether the model writes texts, and is no encoder-decoder model."""
        return self.auto_class == "AutoModelForCausalLM"

    @property
    def own_flags(self) -> list[str]:
        """The names of the flags that no other task has."""
        return [item.name for item in fields(self.arguments) if not hasattr(TaskArguments, item.name)]


# By name.
Tasks = Mapping[str, Task]

# Where this trainer's defaults differ from Hugging Face's, and why.
DEFAULTS: dict[str, Any] = {
    "output_dir": None,  # required: a default folder would mix runs
    "per_device_eval_batch_size": 32,  # evaluation stores no activations
    "logging_steps": 10,  # a step takes a second on CPUs, not milliseconds
    "save_total_limit": 2,  # the last checkpoint, and one older in case the last is broken
    "eval_strategy": "epoch",
    "log_level_replica": "passive",  # by default, ranks above 0 log more than rank 0
    "report_to": "none",
}


@dataclass
class TaskArguments:
    """The task, the model and the data. Names as in Hugging Face's run_glue and run_qa.

    Flags of one task are fields of a subclass in the task's module.
    """

    task: Optional[str] = flag("Task to train. Default: inferred from the columns of the data.")
    model_name_or_path: Optional[str] = flag("Folder of a pretrained model, or its name on the hub.")
    tokenizer_name: Optional[str] = flag("Folder or hub name of the tokenizer. Default: the model's tokenizer.")
    model_revision: str = flag("Branch, tag or commit of the model on the hub.", "main")
    dataset_name: Optional[str] = flag(
        "Name of a data set on the hub. Evaluated: its split validation, else validation_matched, else test."
    )
    dataset_config_name: Optional[str] = flag("Configuration of the data set.", needs="dataset_name")
    train_file: Optional[str] = flag(
        "Training data (csv, tsv, json, jsonl, txt, .gz of these, parquet): a file, folder or pattern "
        "('/data/*.jsonl'), also at a URL (https://, hf://)."
    )
    validation_file: Optional[str] = flag("Evaluation data, named in the same way.")
    text_column_names: Optional[str] = flag(
        "Column with the text, or two columns for pairs ('sentence1,sentence2') or for source and target."
    )
    label_column_name: str = flag("Column with the label.", "label")
    max_seq_length: Optional[int] = flag("Longest input in tokens.", takes=COUNT)  # see make_parser
    use_peft: bool = flag("Train a LoRA adapter and freeze the model.", False)
    lora_r: int = flag("Rank of the adapter's matrices.", 16, takes=FlagRange(1, 65536))
    lora_alpha: int = flag("Scale the adapter by lora_alpha / lora_r.", 32, takes=COUNT)
    lora_dropout: float = flag("Dropout before the adapter's matrices.", 0.0, takes=FlagRange(0, 1, "[)"))
    lora_target_modules: Optional[str] = flag(
        "Layers that get an adapter: 'q_proj,v_proj'. Default: all linear layers except the head."
    )
    load_in_4bit: bool = flag(
        "Keep the frozen weights of linear layers in 4 bits (QLoRA). Needs the package bitsandbytes.", False
    )
    merge_adapter: bool = flag(
        "Also write OUTPUT_DIR/merged: the model with the adapter merged into its weights.", False, whole=True
    )
    pad_to_max_length: bool = flag(
        "Pad every input to max_seq_length instead of to the longest input of its batch.", False
    )
    max_train_samples: Optional[int] = flag(
        "Number of rows to train on. Default: all rows.", takes=COUNT, needs="do_train"
    )
    max_eval_samples: Optional[int] = flag(
        "Number of rows to evaluate. Default: all rows.", takes=COUNT, needs="do_eval"
    )
    overwrite_output_dir: bool = flag("Replace the checkpoints and the result of an earlier run.", False)
    ddp_comm_hook: Optional[str] = flag(
        "Send gradients as bf16 (half of the bytes), or as torch does. Default: as torch does, except that only "
        "the rows in use of a word embedding are sent.",
        choices=["bf16", "torch"],
        whole=True,
    )
    backend: Optional[str] = flag("Backend of the process group: ccl or gloo. Default: ccl if the image has it.")
    quiet: bool = flag("Do not print ranks, cores and transport at the start.", False)
    check_replicas: bool = flag("Compare the weights of all ranks after training.", True)


@dataclass(frozen=True)
class Parsed:
    """Checked flags. `training`: the fields of TrainingArguments. `given`: the names of the flags that were given.

    `cleaned`: the flags from old guides.
    """

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


class _Parser(Parser):
    """A parser with errors of one line. Hugging Face's parser prints the usage of 150 flags above an error."""

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        return super().add_argument(*names, **{name: settings[name] for name in settings.keys() - CHECKS})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{' '.join(message.split())}: run train --help for the list of flags")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # int() and float() also accept the digits of other scripts.
        if action.type in (int, float) and not arg_string.isascii():
            raise argparse.ArgumentError(action, f"found {arg_string!a}, expected a number in ASCII digits")
        return super()._get_value(action, arg_string)


def all_arguments(tasks: Tasks) -> type[TaskArguments]:
    """TaskArguments with the flags of every task."""
    own = [task.arguments for task in tasks.values() if task.own_flags]
    return make_dataclass("AllArguments", (), bases=(*own, TaskArguments))


def make_parser(tasks: Tasks) -> argparse.ArgumentParser:
    """The complete parser. Imports transformers."""
    from transformers import HfArgumentParser, TrainingArguments

    parser_class: Any = type("Parser", (_Parser, HfArgumentParser), {})
    parser: argparse.ArgumentParser = parser_class(
        [all_arguments(tasks), TrainingArguments],
        allow_abbrev=False,
        add_help=False,
        prog="train",
        conflict_handler="resolve",  # transformers 4 has --overwrite_output_dir too
    )
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # otherwise, argparse takes -1e-3 for a flag
    known = {action.dest: action for action in parser._actions}
    known["task"].choices = list(tasks)
    lengths = [task.length for task in tasks.values()]
    default = f"{min(lengths)} to {max(lengths)}, by the task"
    known["max_seq_length"].help = f"Longest input in tokens, at most the model's limit. Default: {default}."
    parser.set_defaults(**{name: value for name, value in DEFAULTS.items() if name in known})
    return parser


def parse(argv: list[str], tasks: Tasks, check: bool = True) -> Parsed:
    """Parse and check the flags, without reading data or model. Raises UsageError.

    The first argument may be a config file. Flags on the command line take precedence over it.
    """
    file, words = config_files.split(argv)
    parser = make_parser(tasks)
    own = frozenset(action.dest for action in parser._actions)
    known = own | old_flags.HANDLED
    filed = [_checked(entry, parser, known, own) for entry in (config_files.read(file) if file else [])]
    cleaned = old_flags.clean(
        [*(word for entry in filed for word in entry), *words], packages.installed(packages.IPEX), own
    )
    namespace, rest = parser.parse_known_args(cleaned.argv)
    if rest:
        # The value of an unknown flag is left over too: name the flag.
        first = next((argument for argument in rest if argument.startswith("--")), rest[0])
        raise unknown(first, own)
    values = vars(namespace)
    named = [name for name in map(name_of, cleaned.argv) if name]
    given = frozenset(name if name in values else name[len("no_") :] for name in named)  # --no_bf16 gives bf16
    of_tasks = all_arguments(tasks)
    names = {item.name for item in fields(of_tasks)}
    task = of_tasks(**{name: values[name] for name in names})
    training = {name: value for name, value in values.items() if name not in names}
    if check:
        _check(task, training, given)
    return Parsed(task, training, given, cleaned)


def _checked(
    entry: config_files.ConfigEntry, parser: argparse.ArgumentParser, known: frozenset[str], own: frozenset[str]
) -> tuple[str, ...]:
    """The entry as flags. Raises UsageError that names its line in the file. `own`: this release's flags."""
    if entry.key not in known:
        raise UsageError(f"{entry.where}: {unknown_key(entry.key, own)}")
    try:
        _, rest = parser.parse_known_args(old_flags.clean(entry.argv, packages.installed(packages.IPEX), own).argv)
    except UsageError as error:
        raise UsageError(f"{entry.where}: {error}") from error
    if rest:
        raise UsageError(f"{entry.where}: '{entry.key}' has {len(entry.argv) - 1} values, expected one")
    return entry.argv


def _check(task: TaskArguments, training: dict[str, Any], given: frozenset[str]) -> None:
    if task.model_name_or_path is None:
        raise UsageError(
            "--model_name_or_path is missing: pass the folder of a pretrained model, or its name on the hub"
        )
    if not training.get("output_dir"):
        raise UsageError(
            "--output_dir is missing: name the folder for checkpoints, weights and result.json, such as "
            f"--output_dir {contract.OUTPUT}/first"
        )
    if not training["do_train"] and not training["do_eval"]:
        for name, file in (("do_train", task.train_file), ("do_eval", task.validation_file)):
            training[name] = name not in given and (file is not None or task.dataset_name is not None)
    if "eval_strategy" in given and training["eval_strategy"] != "no":
        training["do_eval"] = True  # in addition to training
    whole = next((name for name in checks(task, "whole") if getattr(task, name)), None)
    if unsupported.wants_sharding(training.get("fsdp")) and whole is not None:
        raise UsageError(
            f"--fsdp and --{whole} exclude each other: no rank has the complete model. Remove one of them"
        )
    if training.get("fsdp_config"):
        raise UsageError(
            "--fsdp_config is not supported: --fsdp full_shard shards all layers. Remove --fsdp_config"
        )
    if task.dataset_name is not None and (task.train_file or task.validation_file):
        raise UsageError(
            "--dataset_name and --train_file/--validation_file exclude each other: remove one of them"
        )
    if task.dataset_name is None:
        if training["do_train"] and task.train_file is None:
            raise UsageError("--do_train needs data: pass --train_file FILE or --dataset_name NAME")
        if training["do_eval"] and task.validation_file is None:
            name = "do_eval" if "eval_strategy" not in given else f"eval_strategy {training['eval_strategy']}"
            raise UsageError(f"--{name} needs data: pass --validation_file FILE or --dataset_name NAME")
    if not training["do_train"] and not training["do_eval"]:
        raise UsageError("nothing to do: pass --train_file and --validation_file, or --dataset_name")
    unsupported.check(training)
    unsupported.check_ranges({**asdict(task), **training}, checks(task, "takes"))


def unknown(argument: str, known: Iterable[str]) -> UsageError:
    """The error for an argument that no flag takes, with the nearest known flag."""
    name = name_of(argument)
    if not name:
        return UsageError(
            f"unexpected argument '{argument}', expected a --flag: run train --help for the list of flags. A "
            "config file (.yaml) must be the first argument"
        )
    return UsageError(f"unknown flag --{name}: {_hint(name, known, '--', 'flags')}")


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The error for a key of a config file that no flag has, with the nearest known key."""
    return f"unknown key '{key}': {_hint(key, known, '', 'keys')}"


def _hint(name: str, known: Iterable[str], prefix: str, what: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {prefix}{near[0]}?" if near else f"run train --help for the list of {what}"
