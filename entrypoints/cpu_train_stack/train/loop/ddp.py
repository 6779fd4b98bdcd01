"""Turn off work of DistributedDataParallel that the model does not need."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, TrainingArguments


def tune(
    arguments: TrainingArguments, model: PreTrainedModel, batch: dict[str, torch.Tensor], loss: Any = None
) -> None:
    """Turn off work of DDP that this model does not need, unless the user chose it: the search for unused
    parameters in each step, and the broadcast of constant buffers before each forward pass.

    `batch`: one row with its labels, tensors [1, tokens]. `loss`: the task's; None for the model's own.
    """
    if arguments.ddp_broadcast_buffers is None:
        # Integer buffers are constant position numbers. Floating-point buffers may be batch statistics.
        arguments.ddp_broadcast_buffers = any(buffer.is_floating_point() for buffer in model.buffers())
    if arguments.ddp_find_unused_parameters is None:
        arguments.ddp_find_unused_parameters = _drops_layers(model) or _has_unused_parameters(model, batch, loss)


def ignore_frozen(model: PreTrainedModel) -> None:
    """Let DDP ignore frozen weights. Use it for one rank, where DDP copies them although no rank receives them."""
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, frozen)


def _drops_layers(model: PreTrainedModel) -> bool:
    names = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
    return any(getattr(model.config, name, 0) for name in names)


def _has_unused_parameters(model: PreTrainedModel, batch: dict[str, torch.Tensor], loss: Any) -> bool:
    model.eval()
    if loss is None:
        model(**batch).loss.backward()
    else:
        labels = batch.pop("labels")
        loss(model(**batch), labels).backward()
    unused = any(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model.zero_grad(set_to_none=True)
    return unused
