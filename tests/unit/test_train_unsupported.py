"""Fields of TrainingArguments that are refused before anything is done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from entrypoints.errors import UsageError
from entrypoints.train import unsupported

DEFAULTS: dict[str, Any] = {
    "eval_do_concat_batches": True,
    "eval_use_gather_object": False,
    "batch_eval_metrics": False,
    "label_names": None,
    "use_liger_kernel": False,
    "debug": "",
}


def test_the_defaults_and_an_older_release_that_lacks_the_fields_are_taken() -> None:
    unsupported.check(DEFAULTS)
    unsupported.check({})


def test_all_that_cannot_be_done_is_told_at_once() -> None:
    asked = {"eval_do_concat_batches": False, "label_names": ["x"], "debug": "underflow_overflow"}
    with pytest.raises(UsageError) as refused:
        unsupported.check({**DEFAULTS, **asked})
    for name in asked:
        assert f"--{name} " in str(refused.value)
    assert "--batch_eval_metrics" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"persistent": True}, "--dataloader_num_workers above 0"),
        ({"even": False}, "even_batches false"),
        ({"dispatch": True}, "dispatch_batches true"),
    ],
)
def test_what_only_the_made_arguments_tell_is_refused_too(changes: dict[str, bool], told: str) -> None:
    def made(persistent: bool = False, even: bool = True, dispatch: bool | None = None) -> object:
        return SimpleNamespace(
            dataloader_persistent_workers=persistent,
            dataloader_num_workers=0,
            accelerator_config=SimpleNamespace(even_batches=even, dispatch_batches=dispatch),
        )

    unsupported.check_made(made())
    with pytest.raises(UsageError, match=told):
        unsupported.check_made(made(**changes))
