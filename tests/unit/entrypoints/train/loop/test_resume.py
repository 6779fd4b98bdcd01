"""The epochs of data with random parts, and the steps of a resumed run."""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace
from typing import Any

import pytest


def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The module without transformers. It is not kept for other tests."""
    classes = dict.fromkeys(("TrainerCallback", "TrainerState", "TrainingArguments"), object)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**classes))
    monkeypatch.setitem(sys.modules, "cpu_train_stack.group.create", SimpleNamespace(gather=list, agreement=None))
    return runpy.run_module("cpu_train_stack.train.loop.resume")


@pytest.mark.parametrize(
    ("reported", "expected"),
    [((None, 1.0, 2.0), [0, 1, 2]), ((0, 0.8, 1.8), [0, 1, 2]), ((1.4, 2.0), [1, 2]), ((2.0,), [2])],
    ids=["from the start", "accumulated batches left", "resumed in an epoch", "resumed after an epoch"],
)
def test_each_epoch_has_its_own_masks(
    monkeypatch: pytest.MonkeyPatch, reported: tuple[float | None, ...], expected: list[int]
) -> None:
    resume = loaded(monkeypatch)
    begun: list[tuple[int, int]] = []
    callback = resume["BeginEpochs"](SimpleNamespace(begin_epoch=lambda seed, epoch: begun.append((seed, epoch))))
    arguments = SimpleNamespace(seed=7, dataloader_persistent_workers=False)
    for epoch in reported:
        callback.on_epoch_begin(arguments, SimpleNamespace(epoch=epoch), None)
    assert begun == [(7, epoch) for epoch in expected]


@pytest.mark.parametrize(
    ("epochs", "most", "batches", "counts_rest", "expected"),
    [
        (2.5, -1, 16, True, 15),
        (2.5, -1, 16, False, 13),
        (2.5, -1, 15, False, 13),
        (3.0, -1, 2, False, 3),
        (3.0, 4, 16, False, 4),
    ],
    ids=["counted", "not counted", "no rest", "fewer batches than a step", "max_steps"],
)
def test_the_planned_steps_are_those_of_the_release(
    monkeypatch: pytest.MonkeyPatch, epochs: float, most: int, batches: int, counts_rest: bool, expected: int
) -> None:
    """With one step more than Trainer takes, a finished run would be resumed for a further step."""
    arguments = SimpleNamespace(num_train_epochs=epochs, max_steps=most, gradient_accumulation_steps=3)
    assert loaded(monkeypatch)["planned_steps"](arguments, batches, counts_rest) == expected
