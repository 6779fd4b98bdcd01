"""DistributedDataParallel: skip work that the model does not need, and choose how gradients are exchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from transformers import PreTrainedModel, TrainingArguments

from entrypoints.adapt.step_clock import waiting
from entrypoints.train.loop import word_rows


def tune(arguments: TrainingArguments, model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> None:
    """Turn off work of DDP that this model does not need, unless the user chose it: the search for unused
    parameters in each step, and the broadcast of constant buffers before each forward pass.

    `batch`: one row with its labels, integer tensors [1, tokens].
    """
    if arguments.ddp_broadcast_buffers is None:
        # Integer buffers are constant position numbers. Floating-point buffers may be batch statistics.
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


def exchange(model: Any, wanted: str | None) -> None:
    """Set up the exchange of gradients (--ddp_comm_hook). Call before the first backward pass.

    `wanted`: "bf16" sends half of the bytes; "torch" is DDP's default; None is DDP's default, except that only the
    rows in use of a large word embedding are sent. `model`: as Trainer wrapped it; unchanged if without DDP.
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
    # Without a GPU, DDP refuses torch's bf16 hook by its name, although groups on CPUs add up bf16 too.
    plain = default_hooks.bf16_compress_hook if wire else default_hooks.allreduce_hook

    def hook(state: Any, bucket: Any) -> Any:
        with waiting():
            is_reduced = rows is not None and rows.reduce(bucket, wire)
        if not is_reduced:
            return plain(state, bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    hook.__annotations__.clear()  # torch accepts no annotations or its own types, but not their names as texts
    wrapped.register_comm_hook(None, hook)
