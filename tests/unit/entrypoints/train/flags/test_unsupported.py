"""Fields of TrainingArguments that are refused before training starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from entrypoints.cli.errors import UsageError
from entrypoints.train.flags import unsupported

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
