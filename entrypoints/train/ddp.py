"""What DistributedDataParallel is told, so that it does no work that a model does not need."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments


def tune(arguments: TrainingArguments, model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> None:
    """Saves DDP work that this model does not need, unless the user chose: a search for unused parameters in
    each step, and a broadcast of constant buffers before each forward. `batch` is one row with its labels."""
    if arguments.ddp_broadcast_buffers is None:
        # Integer buffers are position numbers; batch statistics are floating point.
        arguments.ddp_broadcast_buffers = any(buffer.is_floating_point() for buffer in model.buffers())
    if arguments.ddp_find_unused_parameters is None:
        arguments.ddp_find_unused_parameters = _drops_layers(model) or _has_unused_parameters(model, batch)


def _drops_layers(model: PreTrainedModel) -> bool:
    names = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
    return any(getattr(model.config, name, 0) for name in names)


def _has_unused_parameters(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> bool:
    model.eval()
    model(**batch).loss.backward()
    unused = any(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model.zero_grad(set_to_none=True)
    return unused


def keep_gradients_in_buckets(accelerator: Any) -> None:
    """Call it before accelerate makes DDP: gradients lie where they are exchanged from, and are not copied back.

    `accelerator`: None, and one without options for DDP, where an older transformers makes DDP, is left alone.
    """
    options = getattr(accelerator, "ddp_handler", None)
    if options is not None:
        options.gradient_as_bucket_view = True


def compress_gradients(model: Any) -> None:
    """Before the first backward pass: DDP's sums travel as bf16, and are kept as they were."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def compress(state: Any, bucket: Any) -> Any:
        # DDP refuses torch's own by its name where there is no GPU; process groups on CPUs add up bf16 as well.
        return bf16_compress_hook(state, bucket)

    wrapped = getattr(model, "_orig_mod", model)  # torch.compile's
    if hasattr(wrapped, "register_comm_hook"):  # one rank alone has nobody to send anything to
        compress.__annotations__.clear()  # torch takes none, or its own types, but not their names
        wrapped.register_comm_hook(None, compress)
