"""What DistributedDataParallel is told, so that it does no work that a model does not need."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from transformers import PreTrainedModel, TrainingArguments

from entrypoints.train.loop import word_rows


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


def exchange(model: Any, wanted: str | None) -> None:
    """Sets up how gradients are exchanged. Call it before the first backward pass.

    `wanted`: "bf16", half of the bytes; "torch", as DDP does by itself; None, the same but for a large word
    embedding, of which only the rows in use travel. `model`: what Trainer trains; one without DDP is left alone.
    """
    is_compiled = hasattr(model, "_orig_mod")
    wrapped = model._orig_mod if is_compiled else model
    if wanted == "torch" or not hasattr(wrapped, "register_comm_hook"):
        return
    found = None if is_compiled else word_rows.table(wrapped.module)
    if found is None and wanted is None:
        return
    rows = word_rows.Rows(found) if found is not None else None
    wire = torch.bfloat16 if wanted == "bf16" else None
    # DDP refuses torch's own for bf16 by its name where there is no GPU; groups on CPUs add up bf16 as well.
    plain = default_hooks.bf16_compress_hook if wire else default_hooks.allreduce_hook

    def hook(state: Any, bucket: Any) -> Any:
        if rows is None or not rows.reduce(bucket, wire):
            return plain(state, bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    hook.__annotations__.clear()  # torch takes none, or its own types, but not their names
    wrapped.register_comm_hook(None, hook)
