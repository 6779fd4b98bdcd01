"""The splits of a data set on the hub."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import splits
from cpu_train_stack.train.flags.arguments import TaskArguments


@pytest.mark.parametrize(
    ("found", "do_eval", "message"),
    [
        (
            "train",
            True,
            "data set 'me/x' has the splits train, expected validation or validation_matched or test: to "
            "train without an evaluation, pass --do_train, and neither --do_eval nor --eval_strategy",
        ),
        ("test", False, "data set 'me/x' has the splits test, expected train: choose another data set"),
    ],
    ids=["nothing to evaluate", "nothing to train on"],
)
def test_a_missing_split_is_one_line_that_names_all_that_would_do(
    monkeypatch: pytest.MonkeyPatch, found: str, do_eval: bool, message: str
) -> None:
    fake = SimpleNamespace(disable_progress_bars=lambda: None, load_dataset=lambda *_: {found: None})
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with pytest.raises(UsageError) as error:
        splits.load(TaskArguments(dataset_name="me/x"), do_train=not do_eval, do_eval=do_eval)
    assert str(error.value) == message
