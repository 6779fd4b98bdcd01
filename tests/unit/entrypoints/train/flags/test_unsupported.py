"""Fields of TrainingArguments that are refused before training starts."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags import unsupported
from cpu_train_stack.train.flags.arguments import TaskArguments
from cpu_train_stack.train.flags.flag import checks

DEFAULTS: dict[str, Any] = {
    "eval_do_concat_batches": True,
    "eval_use_gather_object": False,
    "batch_eval_metrics": False,
    "label_names": None,
    "use_liger_kernel": False,
    "debug": "",
}


def test_the_defaults_and_missing_fields_of_an_older_release_are_accepted() -> None:
    unsupported.check(DEFAULTS)
    unsupported.check({})


def test_every_unsupported_field_is_reported_at_once() -> None:
    given = {"eval_do_concat_batches": False, "label_names": ["x"], "debug": "underflow_overflow"}
    with pytest.raises(UsageError) as refused:
        unsupported.check({**DEFAULTS, **given})
    for name in given:
        assert f"--{name} " in str(refused.value)
    assert "--batch_eval_metrics" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"persistent": True}, "--dataloader_num_workers above 0"),
        ({"even": False}, "even_batches false"),
        ({"dispatch": True}, "dispatch_batches true"),
    ],
)
def test_values_derived_by_training_arguments_are_refused_too(changes: dict[str, bool], message: str) -> None:
    def derived(persistent: bool = False, even: bool = True, dispatch: bool | None = None) -> object:
        return SimpleNamespace(
            dataloader_persistent_workers=persistent,
            dataloader_num_workers=0,
            accelerator_config=SimpleNamespace(even_batches=even, dispatch_batches=dispatch),
        )

    unsupported.check_derived(derived())
    with pytest.raises(UsageError, match=message):
        unsupported.check_derived(derived(**changes))


# Every number that is in no flag's range, and those in the ranges of some.
NEVER = (float("nan"), float("inf"), float("-inf"), -(2.0**70), 2**70)
SEEDS = ("seed", "data_seed")
ZERO = (
    *("warmup_steps", "eval_delay", "dataloader_num_workers", "learning_rate", "weight_decay"),
    *("adam_epsilon", "neftune_noise_alpha", "max_grad_norm", "adam_beta1", *SEEDS),
    *("adam_beta2", "lora_dropout", "label_smoothing_factor", "warmup_ratio"),
)
BELOW_0 = ("data_seed", "max_steps")
RANGES = checks(TaskArguments, "takes")


@pytest.mark.parametrize("name", [*RANGES, *unsupported._RANGES])
def test_a_number_out_of_range_is_refused(name: str) -> None:
    wrong = (*NEVER, *(() if name in ZERO else (0,)), *(() if name in BELOW_0 else (-1, -1e-3)))
    for number in wrong:
        with pytest.raises(UsageError, match=f"^--{name} is {re.escape(str(number))}, expected a number "):
            unsupported.check_ranges({name: number}, RANGES)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("seed", 2**32),
        ("data_seed", 2**64),
        ("adam_beta1", 1.0),
        ("label_smoothing_factor", 1.1),
        ("max_steps", -2),
    ],
)
def test_a_number_above_its_own_limit_is_refused(name: str, number: float) -> None:
    with pytest.raises(UsageError, match=f"^--{name} is {number}, expected "):
        unsupported.check_ranges({name: number}, RANGES)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "nan", "99999999999999999999", "1025"])
def test_a_wrong_number_of_data_loading_processes_in_the_variable_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^CPU_TRAIN_STACK_DATALOADER_WORKERS is "):
        unsupported.workers(text)


def test_the_ends_of_ranges_and_missing_values_are_accepted() -> None:
    zeros = dict.fromkeys(("seed", "learning_rate", "dataloader_num_workers", "adam_beta1", "lora_dropout"), 0)
    unsupported.check_ranges(
        {
            **zeros,
            "seed": 2**32 - 1,
            "data_seed": 2**63 - 1,
            "max_steps": -1,
            "label_smoothing_factor": 1.0,
            "eval_accumulation_steps": None,
        },
        RANGES,
    )


def test_gradient_checkpointing_is_refused_for_a_model_without_it() -> None:
    given, not_given = (SimpleNamespace(gradient_checkpointing=value) for value in (True, False))
    unable = SimpleNamespace(supports_gradient_checkpointing=False)
    adapted = SimpleNamespace(supports_gradient_checkpointing=False, get_base_model=lambda: unable)
    unsupported.check_model(not_given, unable)
    unsupported.check_model(given, SimpleNamespace(supports_gradient_checkpointing=True))
    for model in (unable, adapted):
        with pytest.raises(UsageError, match="--gradient_checkpointing is not supported by SimpleNamespace"):
            unsupported.check_model(given, model)


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        (
            {"ok": 1, "wrong": 2},
            {"ok", "also"},
            "has the key 'wrong', which x does not take, expected one of: also, ok",
        ),
        ({"wrong": 2}, (), "has the key 'wrong', which x does not take, expected none: remove the flag"),
        ("[1]", {"ok"}, "is '[1]', expected a JSON object"),
    ],
)
def test_a_key_that_is_not_taken_is_refused_with_the_possible_keys(
    value: object, known: tuple[str, ...], expected: str
) -> None:
    unsupported.check_keys("f", {}, (), "x")
    unsupported.check_keys("f", {"ok": 1}, {"ok"}, "x")
    with pytest.raises(UsageError) as refused:
        unsupported.check_keys("f", value, known, "x")
    assert str(refused.value) == f"--f {expected}"
