"""The rows of a step are distributed so that its ranks have nearly as many tokens; the step keeps its rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_train_stack.speed import balanced_ranks, joining
from cpu_train_stack.speed.balanced_ranks import Balanced, balance

CHANCE = random.Random(5)
LENGTHS = [CHANCE.randint(4, 128) for _ in range(1000)]


class Shuffled:
    """Another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(LENGTHS)

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(len(LENGTHS)), len(LENGTHS)))


def tokens(rows: list[int], rows_per_batch: int) -> list[int]:
    return [sum(LENGTHS[row] for row in rows[i : i + rows_per_batch]) for i in range(0, len(rows), rows_per_batch)]


@given(st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_balanced_step_has_the_same_rows_in_full_batches(
    batch: int, batches: int, chance: random.Random
) -> None:
    rows = chance.sample(range(1000), batch * batches)
    balanced = balance(rows, LENGTHS, batch)
    assert sorted(balanced) == sorted(rows)
    if batch > 1:
        found = tokens(balanced, batch)
        assert max(found) - min(found) <= max(LENGTHS[row] for row in rows)


@pytest.mark.parametrize(("ranks", "before", "after"), [(2, 1.05, 1.002), (4, 1.1, 1.004), (8, 1.15, 1.01)])
def test_balanced_ranks_have_nearly_the_same_number_of_tokens(ranks: int, before: float, after: float) -> None:
    def longest(rows: list[int]) -> float:
        found = tokens(rows, 16)
        return max(found) * ranks / sum(found)

    steps = [CHANCE.sample(range(1000), 16 * ranks) for _ in range(50)]
    assert sum(map(longest, steps)) / 50 > before
    assert sum(longest(balance(step, LENGTHS, 16)) for step in steps) / 50 < after


def padded_tokens(rows: list[int], rows_per_batch: int, ranks: int) -> tuple[int, int]:
    """The tokens that the slowest rank and all ranks compute, padding included."""
    batches = [rows[begin : begin + rows_per_batch] for begin in range(0, len(rows), rows_per_batch)]
    work = [rows_per_batch * max(LENGTHS[row] for row in batch) for batch in batches]
    return max(sum(work[rank::ranks]) for rank in range(ranks)), sum(work)


@pytest.mark.parametrize(
    ("ranks", "accumulation", "slowest"), [(2, 4, 0.75), (2, 8, 0.72), (4, 4, 0.75), (3, 2, 0.85)]
)
def test_a_model_that_computes_padding_computes_less_of_it(ranks: int, accumulation: int, slowest: float) -> None:
    steps = [CHANCE.sample(range(1000), 4 * ranks * accumulation) for _ in range(50)]
    balanced = [balance(step, LENGTHS, 4, ranks) for step in steps]
    assert [*map(sorted, balanced)] == [*map(sorted, steps)]
    now, before = ([padded_tokens(step, 4, ranks) for step in rows] for rows in (balanced, steps))
    for part in (0, 1):
        assert sum(found[part] for found in now) < slowest * sum(found[part] for found in before)


def test_an_incomplete_step_is_not_balanced() -> None:
    rows = [3, 1, 2, 9, 7]
    assert balance(rows, LENGTHS, 2) == rows
    assert balance([], LENGTHS, 2) == []
    assert balance(rows, LENGTHS, 2, 2) == rows
    assert balance([3, 1, 2], LENGTHS, 1, 2) == [3, 1, 2]
    assert balance([], LENGTHS, 2, 2) == []


def test_the_balanced_sampler_keeps_the_steps_of_the_other() -> None:
    inner = Shuffled()
    sampler = Balanced(inner, LENGTHS, rows_per_batch=4, batches_per_step=6)
    sampler.set_epoch(2)
    expected, found = list(inner), list(sampler)
    assert inner.epoch == 2
    assert len(sampler) == len(found) == 1000
    assert found != expected
    assert found[:24] == expected[:24]  # accelerate fills up the last step with them
    for begin in range(0, 1000, 24):
        assert sorted(found[begin : begin + 24]) == sorted(expected[begin : begin + 24])
    Balanced(range(3), LENGTHS, 1, 3).set_epoch(1)  # a sequential sampler has no epochs


class OldTrainer:
    """The method and its arguments are those of transformers before 4.50, for the rows of training alone."""

    train_dataset = "own rows"
    model = args = None
    accelerator = SimpleNamespace(unwrap_model=lambda model: model)

    def _get_train_sampler(self) -> str:
        return f"sampler of {self.train_dataset}"


class NewTrainer(OldTrainer):
    def _get_train_sampler(self, train_dataset: str | None = None) -> str:
        return f"sampler of {train_dataset or self.train_dataset}"


@pytest.mark.parametrize(
    ("trainer", "arguments", "rows"),
    [(OldTrainer, (), "own rows"), (NewTrainer, (), "own rows"), (NewTrainer, (None,), "own rows"),
     (NewTrainer, ("other rows",), "other rows")],
    ids=["old", "new", "none", "given"],
)  # fmt: skip
def test_every_releases_trainer_gets_a_balanced_sampler_of_the_rows_it_asks_for(
    trainer: type[OldTrainer], arguments: tuple[Any, ...], rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "skips_padding", lambda *_: True)
    monkeypatch.setattr(balanced_ranks, "shuffled", lambda sampler, _: sampler)
    monkeypatch.setattr(balanced_ranks, "tokens_of", lambda dataset: dataset)
    monkeypatch.setattr(balanced_ranks, "between_ranks", lambda sampler, lengths, *_: (sampler, lengths()))
    module = SimpleNamespace(Trainer=type("Trainer", (trainer,), {}))
    reported: list[str] = []
    situation: Any = SimpleNamespace(report=reported.append, in_train=False)
    balanced_ranks.hook(situation, module)
    assert module.Trainer()._get_train_sampler(*arguments) == (f"sampler of {rows}", rows)
    assert len(reported) == 1
