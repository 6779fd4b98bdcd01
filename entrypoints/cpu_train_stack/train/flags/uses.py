"""Which flags a task uses. A flag that the run would silently ignore is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags.arguments import TASKS, Parsed, TaskArguments

_CLASSIFIERS = ("text-classification", "token-classification")
_QUESTIONS = ("question-answering",)
_TEXTS = ("text-generation",)
_PAIRS = ("text2text-generation",)
# The tasks that use a flag.
_OF_TASKS: dict[str, tuple[str, ...]] = {
    "label_column_name": _CLASSIFIERS,
    "text_column_names": ("text-classification", *_TEXTS, *_PAIRS, "fill-mask"),
    "do_regression": ("text-classification",),
    **dict.fromkeys(("source_prefix", "max_target_length", "predict_with_generate"), _PAIRS),
    **dict.fromkeys(("generation_max_length", "num_beams"), _PAIRS),
    **dict.fromkeys(("doc_stride", "max_answer_length", "n_best_size"), _QUESTIONS),
    **dict.fromkeys(("version_2_with_negative", "null_score_diff_threshold"), _QUESTIONS),
    **dict.fromkeys(("packing", "completion_only_loss", "chat_template_path"), _TEXTS),
    "mlm_probability": ("fill-mask",),
    # The model computes the loss of questions.
    "label_smoothing_factor": tuple(task for task in TASKS if task not in _QUESTIONS),
}
# Flags that only have an effect with another flag.
_WITH = {
    "dataset_config_name": "dataset_name",
    "generation_max_length": "predict_with_generate",
    "num_beams": "predict_with_generate",
    "null_score_diff_threshold": "version_2_with_negative",
    **dict.fromkeys(("predict_with_generate", "max_eval_samples"), "do_eval"),
    "max_train_samples": "do_train",
}
# Data turn do_eval and do_train on, unless one of both is given.
_TURNED_ON_BY = {"do_eval": "validation_file", "do_train": "train_file"}
# The flags of a new adapter.
_OF_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
_DEFAULTS = {item.name: item.default for item in fields(TaskArguments)}


def check(parsed: Parsed, task: str, is_adapter: bool = False) -> None:
    """Raise UsageError that lists every given flag that a run of this task would ignore.

    `is_adapter`: whether the model is an adapter, which has its own settings. Flags of older guides, which are
    accepted under another name with a note, may have no effect.
    """
    renamed = {item.flag.now for item in parsed.cleaned.found}
    given = {name: value for name, value in parsed.flags.items() if name not in renamed and _is_set(name, value)}
    values = {**vars(parsed.task), **parsed.training}
    found = [
        f"--{name} is for {', '.join(tasks)}, but the task is {task}: remove it"
        for name, tasks in _OF_TASKS.items()
        if name in given and task not in tasks
    ]
    found += [
        f"--{name} has no effect without --{other}: add --{_missing(other, values)} or remove --{name}"
        for name, other in _WITH.items()
        if name in given and task in _OF_TASKS.get(name, TASKS) and not values.get(other)
    ]
    remedy = None
    if is_adapter:
        remedy = f"remove it, because the model '{parsed.task.model_name_or_path}' is an adapter"
    elif not parsed.task.use_peft:
        remedy = "add --use_peft or remove it"
    if remedy is not None:
        found += [f"--{name} is for a new adapter: {remedy}" for name in _OF_ADAPTERS if name in given]
    if found:
        raise UsageError("; ".join(found))


def _missing(flag: str, values: dict[str, Any]) -> str:
    """What to add for the effect of `flag`: its data if there are none."""
    data = _TURNED_ON_BY.get(flag, flag)
    return flag if values.get(data) or values["dataset_name"] else data


def _is_set(name: str, value: Any) -> bool:
    """Whether the value of a flag asks for something: `--packing false` does not."""
    return bool(value) or value != _DEFAULTS.get(name, value)
