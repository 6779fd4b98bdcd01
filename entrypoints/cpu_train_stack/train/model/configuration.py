"""The model's configuration: the labels that its head has, and a new head for other labels."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import torch
import transformers

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.classification_rows import quoted
from cpu_train_stack.train.data.labels import REGRESSION
from cpu_train_stack.train.data.types import Rows
from cpu_train_stack.train.flags.arguments import TaskArguments
from cpu_train_stack.train.model import adapters

FILE = "config.json"
# Files that only a run of a trainer writes beside its adapter.
_OF_A_RUN = ("trainer_state.json", "result.json")


def read(arguments: TaskArguments, labels: bool = False) -> Any:
    """The model's configuration: for an adapter, that of its base model. Raises UsageError.

    `labels`: prefer the configuration in an adapter's own folder, whose labels are those of the adapter's head.
    """
    given = str(arguments.model_name_or_path)
    has_own = labels and (Path(given) / FILE).is_file()
    name = given if has_own else adapters.base_of(given) or given
    try:
        return transformers.AutoConfig.from_pretrained(name, revision=arguments.model_revision)
    except Exception as error:
        raise UsageError(f"model '{given}' cannot be loaded: {first_line(error)}: {remedy(error)}") from error


def text_of(config: Any) -> Any:
    """The part of a multimodal model's configuration that describes the text; else the configuration itself."""
    return getattr(config, "text_config", None) or config


def pad_like(tokenizer: Any, config: Any) -> None:
    """Set the tokenizer's padding token, by which a decoder's classifier finds the last token of each row."""
    for part in (config, text_of(config)):
        part.pad_token_id = tokenizer.pad_token_id


def label_count_of(arguments: TaskArguments) -> int:
    """The number of labels in the model's configuration."""
    return len(read(arguments, labels=True).id2label)


def label_names_of(arguments: TaskArguments) -> list[str] | None:
    """The labels of a fine-tuned classifier, in the order of its head.

    None without a model, and if the labels are only LABEL_0, LABEL_1, ... Earlier versions of `train` wrote
    adapters without their labels, whose order was that of the data.
    """
    if arguments.model_name_or_path is None:
        return None
    folder = Path(arguments.model_name_or_path)
    has_own = (folder / FILE).is_file()
    if adapters.is_adapter(folder) and not has_own and any((folder / name).is_file() for name in _OF_A_RUN):
        return None
    return names_in(read(arguments, labels=True))


def names_in(config: Any) -> list[str] | None:
    """The labels of a configuration; None if they are only LABEL_0, LABEL_1, ..."""
    names = [str(config.id2label[index]) for index in sorted(config.id2label)]
    return None if names == [f"LABEL_{index}" for index in range(len(names))] else names


def predicts_numbers(arguments: TaskArguments) -> bool:
    """Whether the model was trained to predict a number for each row."""
    if arguments.model_name_or_path is None:
        return False
    return getattr(read(arguments, labels=True), "problem_type", None) == REGRESSION


def other_labels(arguments: TaskArguments, rows: Rows) -> str | None:
    """A note if the model's labels are not those of the data: its head cannot be used. None otherwise.

    Raises UsageError if the head belongs to an adapter.
    """
    known = label_names_of(arguments) if rows.labels is not None else None
    if known is None or rows.labels is None or set(known) == set(rows.labels):
        return None
    found = f"the model's labels are {quoted(known)}, the data's are {quoted(rows.labels)}"
    if adapters.base_of(str(arguments.model_name_or_path)) is not None:
        raise UsageError(f"{found}: train a new adapter, with the base model as --model_name_or_path")
    return f"{found}: the model gets a new head"


def head_of(model: Any, auto: Any) -> list[str]:
    """The names of the parameters whose shapes depend on the number of labels. `auto`: the model's Auto class."""
    # torch 1.13's devices are not context managers: the weights take memory there.
    meta = torch.device("meta") if hasattr(torch.device, "__enter__") else contextlib.nullcontext()
    shapes = []
    for added in (0, 1):
        config = copy.deepcopy(model.config)
        config.num_labels += added
        with meta:
            shapes.append({name: weight.shape for name, weight in auto.from_config(config).named_parameters()})
    return [name for name, _ in model.named_parameters() if shapes[0].get(name) != shapes[1].get(name)]


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def remedy(error: BaseException) -> str:
    """What to do about a model that cannot be loaded."""
    is_far = "couldn't connect to" in str(error) or "offline mode" in str(error)
    return "mount the model's folder, or check the network and its proxy" if is_far else "check the name"
