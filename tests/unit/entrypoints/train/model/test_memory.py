"""The memory of a training job: the prediction, and the line that refuses a job that cannot fit."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.train.data.types import TrainerInputs
from cpu_train_stack.train.model import memory
from cpu_train_stack.train.model.memory import Flags, Footprint

GB = 1_000_000_000
FOOTPRINT = Footprint(
    loaded=2 * GB,
    peak=3 * GB,
    gradients=1 * GB,
    largest_gradient=GB // 2,
    states=2 * GB,
    copies=GB // 2,
    per_token=1_000_000,
    per_layer=100_000,
    tokens=2000,
    scores=300_000_000,
    buffers=0,
)
FLAGS = Flags(rows=8, recomputes=False, trains_all=True, ranks=2)


def test_activations_of_the_largest_batch_come_on_top_of_weights_gradients_and_optimizer() -> None:
    assert FOOTPRINT.activations == 2_200_000_000 + 300_000_000 + GB // 2
    assert FOOTPRINT.needed == 2 * GB + 2 * GB + 3 * GB + 1 * GB


def test_three_gradients_of_the_largest_weight_replace_activations_at_the_end_of_the_backward_pass() -> None:
    assert dataclasses.replace(FOOTPRINT, largest_gradient=2 * GB).needed == 2 * GB + 2 * GB + 1 * GB + 6 * GB


def test_a_job_needs_at_least_what_loading_it_needed() -> None:
    assert dataclasses.replace(FOOTPRINT, peak=20 * GB).needed == 20 * GB


def test_ranks_that_get_their_weights_from_rank_0_need_buffers_for_them() -> None:
    assert dataclasses.replace(FOOTPRINT, buffers=7 * GB).needed == 2 * GB + 7 * GB
    mebibyte = 1 << 20
    assert memory.buffers([3 * mebibyte, mebibyte], ranks=2) == 4 * mebibyte
    assert memory.buffers([400 * mebibyte, *[50 * mebibyte] * 20], ranks=2) == 650 * mebibyte
    assert memory.buffers([400 * mebibyte], ranks=1) == 0


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [("adamw_torch_fused", 2), ("adamw_torch", 2), ("sgd", 0), ("adafactor", 0), ("adagrad", 1)],
)
def test_optimizers_differ_in_what_they_keep(optimizer: str, numbers: int) -> None:
    assert memory.states_per_weight(optimizer) == numbers


def test_the_largest_batch_has_the_longest_rows() -> None:
    assert memory.largest_batch([3, 9, 5, 7], 2, is_padded=False) == 16
    assert memory.largest_batch([3, 9, 5, 7], 2, is_padded=True) == 18
    assert memory.largest_batch([3], 2, is_padded=True) == 3
    assert memory.largest_batch([], 2, is_padded=True) == 0


@pytest.mark.parametrize(
    ("shift", "row", "kept"),
    [
        pytest.param(None, {"input_ids": [1] * 300, "labels": [0.0] * 300}, (128, 300), id="classes of a row"),
        pytest.param(None, {"input_ids": [1] * 300, "labels": [0.0] * 3}, (128, 3), id="three classes"),
        pytest.param(True, {"input_ids": [1] * 300, "labels": [1] * 300}, (128, 128), id="labels of tokens"),
        pytest.param(False, {"input_ids": [1] * 300, "labels": [1] * 140}, (128, 128), id="a target"),
    ],
)
def test_only_labels_of_tokens_are_cut_in_a_measured_row(
    shift: bool | None, row: dict[str, Any], kept: tuple[int, int]
) -> None:
    loss = None if shift is None else SimpleNamespace(shift=shift)
    inputs = TrainerInputs([row], None, None, None, "f1", 512, loss)
    found = memory.short_row(inputs, 0)
    assert (len(found["input_ids"]), len(found["labels"])) == kept


def test_a_measured_question_keeps_its_separators() -> None:
    ids = [0, 7, 2, 2, *[9] * 379, 2]
    inputs = TrainerInputs([{"input_ids": ids, "start_positions": 200}], None, None, None, "f1", 384)
    found = memory.short_row(inputs, 0)
    assert (len(found["input_ids"]), found["input_ids"].count(2), found["start_positions"]) == (128, 3, 200)


def test_the_line_names_what_takes_the_memory() -> None:
    assert memory.line(FOOTPRINT) == (
        "memory: about 8.0 GB per rank (2.0 loaded, 3.0 gradients and optimizer, 3.0 for the 2,000 tokens of the "
        "largest batch)"
    )


def test_a_job_that_fits_is_not_refused() -> None:
    assert memory.refusal(FOOTPRINT, 16 * GB, 2, FLAGS) is None


def test_a_job_that_cannot_fit_names_the_flags_that_help_most_first() -> None:
    assert memory.refusal(FOOTPRINT, 15 * GB, 2, FLAGS) == (
        "this job needs about 8.0 GB per rank, 16.0 GB for 2 ranks, but 15.0 GB are available here: use "
        "--gradient_checkpointing, or --use_peft, or a smaller --per_device_train_batch_size, or fewer ranks per "
        "node"
    )
    adapter = dataclasses.replace(FOOTPRINT, gradients=0, states=0)
    flags = Flags(rows=1, recomputes=True, trains_all=False, ranks=1)
    assert memory.refusal(adapter, 4 * GB, 1, flags) == (
        "this job needs about 5.0 GB, but 4.0 GB are available here: use a smaller --max_seq_length"
    )
