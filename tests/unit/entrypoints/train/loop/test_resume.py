"""The epochs of data with random parts."""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("reported", "expected"),
    [((None, 1.0, 2.0), [0, 1, 2]), ((0, 0.8, 1.8), [0, 1, 2]), ((1.4, 2.0), [1, 2]), ((2.0,), [2])],
    ids=["from the start", "accumulated batches left", "resumed in an epoch", "resumed after an epoch"],
)
def test_each_epoch_has_its_own_masks(
    monkeypatch: pytest.MonkeyPatch, reported: tuple[float | None, ...], expected: list[int]
) -> None:
    classes = dict.fromkeys(("TrainerCallback", "TrainerState", "TrainingArguments"), object)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**classes))
    monkeypatch.setitem(sys.modules, "entrypoints.group.create", SimpleNamespace(gather=list))
    resume = runpy.run_module("entrypoints.train.loop.resume")  # not kept for other tests
    begun: list[tuple[int, int]] = []
    callback = resume["BeginEpochs"](SimpleNamespace(begin_epoch=lambda seed, epoch: begun.append((seed, epoch))))
    arguments = SimpleNamespace(seed=7, dataloader_persistent_workers=False)
    for epoch in reported:
        callback.on_epoch_begin(arguments, SimpleNamespace(epoch=epoch), None)
    assert begun == [(7, epoch) for epoch in expected]
