"""Wrappers of models, and losses of the script's own."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from common import CLASSES, DECODER, SHARES, TEXTS, Way, bert, llama, of, trainer
from torch.nn.functional import cross_entropy
from transformers import Trainer


class Holder(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner


class Wrapper(Holder):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)


class OpenWrapper(Holder):
    def forward(self, **kwargs: Any) -> Any:
        return self.inner(**kwargs)


class Strict(torch.nn.Module):
    """A module that refuses what it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = torch.nn.Embedding(24, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return self.scores(self.words(input_ids).mean(1))


class Picky(Holder):
    """Refuses unknown arguments in its own way."""

    def forward(self, labels: Any = None, **inputs: Any) -> Any:
        if unknown := {*inputs} - {"input_ids", "attention_mask"}:
            raise ValueError(f"unknown: {', '.join(unknown)}")
        return self.inner(labels=labels, **inputs)


class AroundStrict(Holder):
    def forward(self, labels: Any = None, **inputs: Any) -> Any:
        logits = self.inner(**inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Penalized(Holder):
    """Adds a mean of its own to a loss that the count divides."""

    def forward(self, **kwargs: Any) -> Any:
        found = self.inner(**kwargs)
        found.loss = found.loss + 0.3 * found.logits.square().mean()
        return found


def mean(logits: Any, labels: Any) -> Any:
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


def total(logits: Any, labels: Any) -> Any:
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum")


class OwnMean(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = mean(found.logits, labels)
        return (loss, found) if return_outputs else loss


class OwnWeights(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.get("labels")
        found = model(**inputs)
        loss = cross_entropy(found.logits, labels, label_smoothing=0.2)
        return (loss, found) if return_outputs else loss


class OwnDivision(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = total(found.logits, labels) / num_items_in_batch
        return (loss, found) if return_outputs else loss


class OwnItem(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = total(found.logits, labels) / num_items_in_batch.item()
        return (loss, found) if return_outputs else loss


class OwnWhole(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = total(found.logits, labels) / max(int(num_items_in_batch), 1)
        return (loss, found) if return_outputs else loss


class OwnPassing(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        found = model(**inputs, **kwargs)
        return (found.loss, found) if return_outputs else found.loss


class OwnPenalty(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        loss, found = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        loss = loss + 0.3 * found.logits.square().mean()
        return (loss, found) if return_outputs else loss


class OwnWithout(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, return_outputs)


class OwnRanks(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = total(found.logits, labels) / num_items_in_batch * self.accelerator.num_processes
        return (loss, found) if return_outputs else loss


class OwnSteps(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = mean(found.logits, labels) / self.args.gradient_accumulation_steps
        return (loss, found) if return_outputs else loss


class OwnCopy(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        found = model(**inputs, num_items_in_batch=num_items_in_batch)
        loss = found["loss"]
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss *= self.accelerator.num_processes
        return (loss, found) if return_outputs else loss


class OwnDecision(OwnMean):
    loss_is_scaled_for_ga = False


class OwnStep(Trainer):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()


class OldStep(Trainer):
    """As in transformers 4.28 to 4.45, whose accelerator.backward divided by the accumulation steps."""

    def training_step(self, model: Any, inputs: Any) -> Any:
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach() / self.args.gradient_accumulation_steps


class DividedStep(Trainer):
    """As in transformers before 4.28."""

    def training_step(self, model: Any, inputs: Any) -> Any:
        loss = self.compute_loss(model, self._prepare_inputs(inputs)) / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


class CopiedStep(Trainer):
    """As in transformers 4.46 and newer."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if not self.model_accepts_loss_kwargs and self.compute_loss_func is None:
            loss = loss / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


class Replaced(Trainer):
    """The method is replaced in the object."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.compute_loss = functools.partial(OwnMean.compute_loss, self)


class ReplacedStep(Trainer):
    """The step is replaced in the object."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.training_step = types.MethodType(OldStep.training_step, self)


def patched(build: Any) -> Any:
    """The step is replaced in Trainer, for one training."""

    def build_patched(arguments: Any) -> Any:
        made, before = build(arguments), Trainer.training_step
        train = made.train

        def train_patched() -> Any:
            Trainer.training_step = OldStep.training_step
            try:
                return train()
            finally:
                Trainer.training_step = before

        made.train = train_patched
        return made

    return build_patched


def ignores(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return mean(outputs.logits, labels)


def divides(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return total(outputs.logits, labels) / num_items_in_batch


def adds(outputs: Any, labels: Any, num_items_in_batch: Any = None, weight: float = 0.3) -> Any:
    return divides(outputs, labels, num_items_in_batch) + weight * outputs.logits.square().mean()


class Module(torch.nn.Module):
    def forward(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return cross_entropy(outputs.logits, labels)


def wrapped(kind: Any, inner: Any) -> Any:
    return lambda: kind(inner())


_tags = of("LlamaForTokenClassification", {**DECODER, "num_labels": 24, "classifier_dropout": 0.0})
WAYS = {
    "a wrapper of BERT": Way(trainer(wrapped(Wrapper, bert), CLASSES)),
    "a wrapper with **kwargs of BERT": Way(trainer(wrapped(OpenWrapper, bert), CLASSES)),
    "a wrapper of a wrapper": Way(trainer(wrapped(OpenWrapper, wrapped(Wrapper, bert)), CLASSES)),
    "a wrapper of Llama": Way(trainer(wrapped(Wrapper, llama), SHARES)),
    "a wrapper of a module that refuses the count": Way(trainer(wrapped(AroundStrict, Strict), CLASSES)),
    "a wrapper that refuses the count in its own way": Way(trainer(wrapped(Picky, bert), CLASSES)),
    "a wrapper that adds a mean": Way(trainer(wrapped(Penalized, llama), TEXTS)),
    "a compiled model": Way(trainer(lambda: torch.compile(llama(), backend="aot_eager"), SHARES)),
    "own mean": Way(trainer(llama, TEXTS, OwnMean)),
    "own mean of tags": Way(trainer(_tags, TEXTS, OwnMean)),
    "own loss of BERT": Way(trainer(bert, CLASSES, OwnWeights)),
    "own division": Way(trainer(llama, SHARES, OwnDivision)),
    "own division by a number": Way(trainer(llama, SHARES, OwnItem)),
    "own division by a whole number": Way(trainer(llama, SHARES, OwnWhole)),
    "own loss that passes the count on": Way(trainer(llama, SHARES, OwnPassing)),
    "own loss that adds a mean": Way(trainer(llama, TEXTS, OwnPenalty)),
    "own loss that adds a mean to BERT's": Way(trainer(bert, CLASSES, OwnPenalty)),
    "own loss without the count": Way(trainer(llama, TEXTS, OwnWithout)),
    "own loss times ranks": Way(trainer(llama, SHARES, OwnRanks)),
    "own loss by steps": Way(trainer(llama, TEXTS, OwnSteps)),
    "a copy of Trainer's method": Way(trainer(llama, SHARES, OwnCopy)),
    "loss_is_scaled_for_ga": Way(trainer(llama, TEXTS, OwnDecision)),
    "own training_step": Way(trainer(bert, CLASSES, OwnStep), accumulates=False),
    "training_step of transformers 4.45": Way(trainer(llama, TEXTS, OldStep)),
    "training_step of transformers 4.27": Way(trainer(bert, CLASSES, DividedStep)),
    "training_step of transformers 4.57": Way(trainer(bert, CLASSES, CopiedStep)),
    "a training_step of transformers 4.45 in the object": Way(trainer(llama, TEXTS, ReplacedStep)),
    "a training_step of transformers 4.45 in Trainer": Way(patched(trainer(llama, TEXTS))),
    "a method replaced in the object": Way(trainer(llama, TEXTS, Replaced)),
    "average_tokens_across_devices=False": Way(trainer(llama, TEXTS), {"average_tokens_across_devices": False}),
    "compute_loss_func, a mean": Way(trainer(llama, TEXTS, compute_loss_func=ignores)),
    "compute_loss_func, by the count": Way(trainer(llama, SHARES, compute_loss_func=divides)),
    "compute_loss_func, both": Way(trainer(llama, TEXTS, compute_loss_func=functools.partial(adds, weight=0.5))),
    "compute_loss_func, a module on BERT": Way(trainer(bert, CLASSES, compute_loss_func=Module())),
}
