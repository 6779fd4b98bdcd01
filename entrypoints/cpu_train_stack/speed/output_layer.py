"""Trainer's language models compute the output layer together with the loss (operators.output_layer)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from transformers.loss.loss_utils import ForCausalLMLoss

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around
from cpu_train_stack.operators.bf16_products import autocast_dtype
from cpu_train_stack.operators.output_layer import IGNORED, OutputLayer, output_layer_of, probing

# The attribute of a Trainer with the model of its last step, and what `_output_layer` returned for it.
_ATTRIBUTE = "_cpu_train_stack_output"


def hook(situation: Situation, module: Any) -> None:
    """`module`: transformers.trainer."""

    @around(module.Trainer, "compute_loss")
    def compute_loss(
        original: Any, self: Any, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **options: Any
    ) -> Any:
        if situation.in_train:  # its loss and metrics are computed from the sums of its trainer's own output layer
            with contextlib.nullcontext() if self.output is None else self.output.labelled(inputs["labels"]):
                return original(self, model, inputs, return_outputs, *args, **options)
        # With `return_outputs`, the caller may read the scores.
        found = None if return_outputs or not model.training or "shift_labels" in inputs else _found(self, model)
        if found is None or "labels" not in inputs:
            return original(self, model, inputs, return_outputs, *args, **options)
        base, output = found
        try:
            with output.labelled(inputs["labels"]), _loss_of_sums(base, output):
                return original(self, model, inputs, return_outputs, *args, **options)
        except _OtherLossError:
            setattr(self, _ATTRIBUTE, (model, None))
            return original(self, model, inputs, return_outputs, *args, **options)

    def _found(trainer: Any, model: Any) -> Any:
        last, found = getattr(trainer, _ATTRIBUTE, (None, None))
        if last is not model:
            found = _output_layer(trainer, trainer.accelerator.unwrap_model(model))
            setattr(trainer, _ATTRIBUTE, (model, found))
            if found is not None:
                situation.report(f"{type(found[0]).__name__} computes scores only for tokens with a label")
        return found


def _output_layer(trainer: Any, model: Any) -> tuple[Any, OutputLayer] | None:
    """The causal language model of a trainer and its output layer. None if the layer cannot compute the loss."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
    other_loss = trainer.label_smoother is not None or trainer.compute_loss_func is not None
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or hasattr(base, "set_reshard_after_forward")
    if other_loss or sharded:
        return None
    if getattr(base, "loss_function", None) is not ForCausalLMLoss:
        return None
    output = output_layer_of(base, shift=True)
    if output is None or any(one._forward_hooks for one in (model, base, base.get_output_embeddings())):
        return None  # a hook may read the scores
    with trainer.accelerator.autocast():
        is_same = _is_same_loss(output, base, trainer.model_accepts_loss_kwargs)
    return (base, output) if is_same else None


class _OtherLossError(Exception):
    """The model computes its loss from other labels than it got, or in another way."""


def _is_same_loss(output: OutputLayer, model: Any, accepts_count: bool) -> bool:
    """Whether the loss of the output layer's sums is the model's own, for a row of which some tokens have labels.

    `accepts_count`: the model's forward accepts `num_items_in_batch`.
    """
    is_wide = autocast_dtype() is None and model.get_output_embeddings().weight.dtype.itemsize == 4
    tolerance = 1e-3 if is_wide else 2e-2
    with probing(model) as row:
        labels = row["input_ids"].clone()
        labels[:, ::3] = IGNORED
        for options in ({}, {"num_items_in_batch": 11}) if accepts_count else ({},):
            try:
                expected = model(**row, labels=labels, **options)["loss"]
                with output.labelled(labels), _loss_of_sums(model, output) as used:
                    found = model(**row, labels=labels, **options)["loss"]
            except Exception:  # noqa: BLE001 - a model that needs another input, or another loss
                return False
            if not used or abs(float(found) - float(expected)) > tolerance * abs(float(expected)):
                return False
    return True


@contextlib.contextmanager
def _loss_of_sums(model: Any, output: OutputLayer) -> Iterator[list[Any]]:
    """Let a model's loss function accept the output layer's sums. Yields the sums that it has accepted.

    It raises _OtherLossError for sums of other labels than those that the model has passed on.
    """
    original = model.loss_function
    used: list[Any] = []

    def loss(logits: Any, labels: Any, *args: Any, num_items_in_batch: Any = None, **options: Any) -> Any:
        if logits is not output.returned:
            return original(logits, labels, *args, num_items_in_batch=num_items_in_batch, **options)
        if labels is not output.labels or options.get("shift_labels") is not None:
            raise _OtherLossError
        used.append(logits)
        tokens = logits[:, 1].sum() if num_items_in_batch is None else num_items_in_batch
        return logits[:, 0].sum() / tokens

    model.loss_function = loss
    try:
        yield used
    finally:
        del model._loss_function
