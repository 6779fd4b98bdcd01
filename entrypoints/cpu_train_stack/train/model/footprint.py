"""Measures the memory that a training job will need, with two short batches before the first step."""

from __future__ import annotations

import resource
from typing import Any

import psutil
import torch

from cpu_train_stack.operators import output_layer, recomputation
from cpu_train_stack.records.tokens import count
from cpu_train_stack.speed import joining, lora
from cpu_train_stack.train.data.types import TrainerInputs
from cpu_train_stack.train.model import configuration, memory
from cpu_train_stack.train.model.memory import Footprint


def measure(trainer: Any, inputs: TrainerInputs, output: Any) -> Footprint:
    """The footprint of a Trainer's job before it trains. The model must not be sharded.

    `output`: the output layer that computes the loss (operators.output_layer), or None.
    """
    arguments, model, collate = trainer.args, trainer.model, inputs.collate
    lengths = inputs.train.lengths()
    row = memory.short_row(inputs, lengths.index(min(lengths)))
    narrow = lora.narrowed(trainer)
    rows = arguments.per_device_train_batch_size
    is_padded = not joining.skips_padding(model, arguments)
    tokens = memory.largest_batch(lengths, rows, is_padded)
    size = sum(_sizes(model))
    with narrow, torch.random.fork_rng(devices=[]):
        sizes = _sizes(model)
        saved = size - sum(sizes)
        one, two = (_kept(trainer, collate([row] * rows)) for rows in (1, 2))
        with trainer.accelerator.autocast():
            scores = 0 if output is None else output_layer.working_bytes(output, tokens)
    lora.return_free_memory()  # that the batches and loading have left
    tokens_of_one = count(collate([row])).computed
    gradients = [weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad]
    config = configuration.text_of(model.config)
    layers = int(getattr(config, "num_hidden_layers", 1))
    slope = max(0.0, (two - one) / tokens_of_one)
    per_token, per_layer = slope, slope / layers
    if arguments.gradient_checkpointing:  # Trainer turns it on when it starts
        per_token = layers * config.hidden_size * 4.0
    return Footprint(
        loaded=psutil.Process().memory_info().rss - saved,
        peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        gradients=sum(gradients),
        largest_gradient=max(gradients, default=0),
        states=memory.states_per_weight(str(getattr(arguments.optim, "value", arguments.optim))) * sum(gradients),
        copies=round(max(0.0, one - slope * tokens_of_one)),
        per_token=per_token,
        per_layer=per_layer,
        tokens=tokens,
        scores=scores,
        buffers=memory.buffers(sizes, arguments.world_size),
    )


def _sizes(model: Any) -> list[int]:
    return [weight.numel() * weight.element_size() for weight in model.parameters()]


def _kept(trainer: Any, batch: dict[str, Any]) -> int:
    """The bytes that the forward pass of a batch keeps for the backward pass, without the model's own weights."""
    model = trainer.model
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and recomputation.is_kept(tensor):
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a result that its own node saves would never be freed

    mode = model.training
    model.train()
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), trainer.accelerator.autocast():
            trainer.compute_loss(model, batch)
    finally:
        model.train(mode)
    return sum(storages.values())
