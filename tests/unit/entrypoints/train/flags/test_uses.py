"""Flags that the task does not use are refused if they are given."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags import old_flags, uses
from cpu_train_stack.train.flags.arguments import Parsed, Task, TaskArguments, all_arguments
from cpu_train_stack.train.flags.flag import flag

# The tasks' own flags. The tasks themselves import torch.
OWN: dict[str, dict[str, Any]] = {
    "question-answering": {
        "doc_stride": flag("", 128),
        "version_2_with_negative": flag("", False),
        "null_score_diff_threshold": flag("", 0.0, needs="version_2_with_negative"),
    },
    "text-generation": {"packing": flag("", False), "completion_only_loss": flag("")},
    "text2text-generation": {
        "predict_with_generate": flag("", False, needs="do_eval"),
        "generation_max_length": flag("", needs="predict_with_generate"),
        "num_beams": flag("", needs="predict_with_generate"),
    },
}
FLAGS = {
    "text-classification": "label_column_name text_column_names label_smoothing_factor",
    "token-classification": "label_column_name label_smoothing_factor",
    "question-answering": "",
    "text-generation": "text_column_names label_smoothing_factor",
    "text2text-generation": "text_column_names",
    "fill-mask": "text_column_names label_smoothing_factor",
}


def task(name: str) -> Task:
    own = [(key, Any, field) for key, field in OWN.get(name, {}).items()]
    return Task(name, 1, "", None, 8, FLAGS[name], make_dataclass("Own", own, bases=(TaskArguments,)))


TASKS = {name: task(name) for name in FLAGS}


def parsed(*argv: str, **flags: Any) -> Parsed:
    """`argv`: flags of older guides. `flags`: the flags that are given."""
    training: dict[str, Any] = {
        name: flags.pop(name) for name in ("label_smoothing_factor", "do_eval") if name in flags
    }
    given = frozenset({*flags, *training} - {"do_eval"})
    return Parsed(all_arguments(TASKS)(**flags), training, given, old_flags.clean(argv))


@pytest.mark.parametrize(
    ("task", "flags", "message"),
    [
        ("question-answering", {"label_smoothing_factor": 0.1}, "but the task is question-answering: remove it"),
        ("question-answering", {"text_column_names": "a"}, "--text_column_names is for text-classification, text"),
        (
            "text-classification",
            {"num_beams": 4},
            "--num_beams is for text2text-generation, but the task is text-cl",
        ),
        ("fill-mask", {"packing": True}, "--packing is for text-generation, but the task is fill-mask: remove it"),
        (
            "text-generation",
            {"label_column_name": "tags"},
            "for text-classification, token-classification, but",
        ),
        ("text-generation", {"lora_r": 16}, "--lora_r is for a new adapter: add --use_peft or remove it"),
        (
            "fill-mask",
            {"doc_stride": 128, "lora_alpha": 8},
            "remove it; --lora_alpha is for a new adapter: add --use_peft",
        ),
        ("text-classification", {"completion_only_loss": False}, "--completion_only_loss is for text-generation"),
        (
            "text2text-generation",
            {"num_beams": 4, "generation_max_length": 32},
            "--generation_max_length has no effect without --predict_with_generate: add "
            "--predict_with_generate or remove --generation_max_length; --num_beams has no effect",
        ),
        (
            "question-answering",
            {"null_score_diff_threshold": 0.5},
            "--null_score_diff_threshold has no effect without --version_2_with_negative",
        ),
        (
            "fill-mask",
            {"max_eval_samples": 9},
            "--max_eval_samples has no effect without --do_eval: add --validation_file or",
        ),
        ("fill-mask", {"max_eval_samples": 9, "validation_file": "a.txt"}, "without --do_eval: add --do_eval or"),
        ("fill-mask", {"max_train_samples": 9, "dataset_name": "a"}, "without --do_train: add --do_train or"),
        ("fill-mask", {"dataset_config_name": "a"}, "--dataset_config_name has no effect without --dataset_name"),
    ],
)
def test_a_flag_that_the_task_ignores_is_refused(task: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        uses.check(parsed(**flags), TASKS[task], TASKS)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("task", "flags"),
    [
        ("text-generation", {"packing": True, "lora_r": 4, "use_peft": True}),
        ("text-classification", {"packing": False, "lora_dropout": 0.0, "label_smoothing_factor": 0.1}),
        ("question-answering", {"doc_stride": 64, "label_smoothing_factor": 0.0}),
        ("text2text-generation", {"num_beams": 4, "predict_with_generate": True, "do_eval": True}),
    ],
)
def test_a_flag_that_is_used_or_asks_for_nothing_is_accepted(task: str, flags: dict[str, Any]) -> None:
    uses.check(parsed(**flags), TASKS[task], TASKS)


def test_the_flags_of_a_new_adapter_are_refused_for_a_trained_one() -> None:
    flags = parsed(model_name_or_path="trained", lora_r=8, use_peft=True)
    with pytest.raises(
        UsageError, match="--lora_r is for a new adapter: remove it, because the model 'trained' is"
    ):
        uses.check(flags, TASKS["text-generation"], TASKS, is_adapter=True)


def test_a_flag_of_an_older_guide_is_accepted_under_its_present_name() -> None:
    uses.check(parsed("--val_max_target_length=32", generation_max_length=32), TASKS["text-classification"], TASKS)
    with pytest.raises(UsageError, match="--generation_max_length is for text2text-generation"):
        uses.check(parsed(generation_max_length=32), TASKS["text-classification"], TASKS)
