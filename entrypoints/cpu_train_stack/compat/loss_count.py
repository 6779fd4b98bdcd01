"""The number of labels that a Trainer counts, and the share of it that a loss gets. Imports torch."""

from __future__ import annotations

from typing import Any

import torch


class LabelCount(torch.Tensor):
    """A share of a number of labels. `is_cut`: whether the script has made a whole number of it."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cut = False

    def _cut(self) -> torch.Tensor:
        whole = self.as_subclass(torch.Tensor).long()
        self.is_cut = self.is_cut or bool((whole != self).any())
        return whole

    def __int__(self) -> int:
        return int(self._cut())

    def int(self, **options: Any) -> torch.Tensor:
        return self._cut().int(**options)

    def long(self, **options: Any) -> torch.Tensor:
        return self._cut().long(**options)


def share(count: Any, parts: int) -> Any:
    """`count` divided by `parts`, as a LabelCount if it is a tensor."""
    part = count / parts
    return part.as_subclass(LabelCount) if isinstance(part, torch.Tensor) else part


def nearest(part: Any) -> Any:
    """The nearest whole number of labels, at least one, with the type of `part`."""
    whole = max(round(float(part)), 1)
    return torch.full_like(part.as_subclass(torch.Tensor), whole) if isinstance(part, torch.Tensor) else whole


def count_as_the_inner_model(trainer: Any) -> None:
    """Trainer counts all labels but the first of each row for a causal language model, also inside a wrapper."""
    if not hasattr(trainer, "_loss_shifts_labels"):
        return  # before transformers 5, Trainer counts all labels
    from transformers import PreTrainedModel
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    modules = trainer.accelerator.unwrap_model(trainer.model).modules()
    inner = next((module for module in modules if isinstance(module, PreTrainedModel)), None)
    if inner is not None and not getattr(inner.config, "is_encoder_decoder", False):
        trainer._loss_shifts_labels = LOSS_MAPPING.get(getattr(inner, "loss_type", None)) is ForCausalLMLoss
