"""The adaptation loss-scale leaves a Trainer alone whose code it does not know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.compat import loss_scale


class Trainer:
    """As much of Trainer as the adaptation reads."""

    def __init__(self) -> None:
        self.args = SimpleNamespace(average_tokens_across_devices=True)

    def train(self) -> None:
        pass

    def compute_loss(self, num_items_in_batch: object = None) -> float:
        return 2.0 if self.args.average_tokens_across_devices else 1.0


class Known(Trainer):
    def training_step(self: Any) -> float:
        return float(self.compute_loss() / (1 if self.model_accepts_loss_kwargs or self.compute_loss_func else 2))


class Later(Trainer):
    """A release that decides elsewhere whether the steps divide the loss."""

    def training_step(self) -> float:
        return self.compute_loss()


class Earlier:
    """A release that does not count labels."""

    def compute_loss(self) -> float:
        return 2.0

    def training_step(self) -> float:
        return self.compute_loss()


def hook(kind: type) -> None:
    loss_scale.hook(Situation((), {"transformers": "99.0"}, "ccl"), SimpleNamespace(Trainer=kind))


def test_known_code_is_changed_without_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(vars(Known))
    hook(Known)
    assert capsys.readouterr().err == ""
    assert vars(Known)["training_step"] is not before["training_step"]


def test_unknown_code_leaves_the_loss_as_it_is_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(vars(Later))
    hook(Later)
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown code in Trainer.training_step: the loss stays as it is" in line
    assert dict(vars(Later)) == before
    assert Later().training_step() == 2.0


def test_a_release_that_counts_no_labels_needs_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    hook(Earlier)
    assert capsys.readouterr().err == ""
