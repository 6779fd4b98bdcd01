"""The epochs of data with random parts, and the steps of a resumed run."""

from __future__ import annotations

import contextlib
import errno
import pickle
import runpy
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError


def loaded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The module without transformers. It is not kept for other tests."""
    classes = dict.fromkeys(("TrainerCallback", "TrainerState", "TrainingArguments"), object)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**classes))
    group = SimpleNamespace(gather=list, agreement=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "cpu_train_stack.group.create", group)
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


class DistBackendError(RuntimeError):
    """As torch's."""


class SafetensorError(Exception):
    """As safetensors'."""


def raised_while_loading(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Exception:
    @loaded(monkeypatch)["reads"]("optimizer.pt")
    def load(_trainer: object, _checkpoint: str) -> None:
        raise error

    try:
        load(None, "checkpoint-2")
    except Exception as found:  # noqa: BLE001 - which one is the question
        return found
    raise AssertionError("no error")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        OSError(errno.EIO, "Input/output error"),
        MemoryError("9 bytes"),
        ModuleNotFoundError("No module named 'numpy._core'"),
        DistBackendError("gloo: state_dict"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:5838"),
        RuntimeError("PytorchStreamReader failed reading file data/0: file read failed"),
        RuntimeError("PytorchStreamReader failed reading file data/0: allocation failed"),
    ],
    ids=str,
)
def test_an_error_that_says_nothing_about_the_checkpoint_stays_what_it_is(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The rank exits with code 1, so that the launcher restarts it. No message says to delete the checkpoint."""
    assert raised_while_loading(monkeypatch, error) is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("PytorchStreamReader failed reading zip archive: failed finding central directory"),
        RuntimeError("record size (20 bytes) does not match expected size (40 bytes) for dtype Byte"),
        RuntimeError('Error(s) in loading state_dict for Linear: Missing key(s) in state_dict: "bias".'),
        RuntimeError("Expected a CPUGeneratorImplState of size 5056 but found the input RNG state size to be 3"),
        pickle.UnpicklingError("Weights only load failed."),
        SafetensorError("Error while deserializing header: header too small"),
        ValueError("loaded state dict has a different number of parameter groups"),
        KeyError("base_lrs"),
        TypeError("expected a torch.ByteTensor, but got list"),
        EOFError("Ran out of input"),
    ],
    ids=str,
)
def test_wrong_content_is_one_line_that_names_the_file(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    found = raised_while_loading(monkeypatch, error)
    assert type(found).__name__ == UsageError.__name__
    assert "checkpoint 'checkpoint-2': optimizer.pt cannot be loaded (" in str(found)
