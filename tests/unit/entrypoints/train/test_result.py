"""result.json: its numbers, and how it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpu_train_stack.train import result
from cpu_train_stack.train.flags.arguments import TaskArguments


def test_the_result_is_written_as_valid_json_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = result.write(tmp_path, {"loss": float("nan"), "rows": [1.5, float("inf")], "map": {1: (2,)}})
    assert json.loads(path.read_text()) == {"loss": None, "rows": [1.5, None], "map": {"1": [2]}}
    assert [item.name for item in tmp_path.iterdir()] == ["result.json"]


def test_the_flags_in_the_result_have_no_credentials() -> None:
    flags = result._flags(TaskArguments(train_file="https://me:abc@host/x.csv?sig=abc", lora_r=3))
    assert (flags["train_file"], flags["lora_r"]) == ("https://<hidden>@host/x.csv?<hidden>", 3)


def test_a_result_that_cannot_be_written_does_not_replace_the_old_one(tmp_path: Path) -> None:
    result.write(tmp_path, {"a": 1})
    with pytest.raises(TypeError):
        result.write(tmp_path, {"a": 2, "b": object()})
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": 1}


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([], (None, None)), ([3.0], (3.0, 3.0)), ([4.0, 2.0, 1.0], (4.0, 1.0)), ([4.0, 2.0] * 10, (3.0, 3.0))],
    ids=["none", "one", "few", "many"],
)
def test_first_and_last_loss_are_means_that_do_not_overlap(
    losses: list[float], expected: tuple[float | None, float | None]
) -> None:
    assert result.window_means(losses, 10) == expected
