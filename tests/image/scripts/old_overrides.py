"""Rarer overrides and calls of transformers 4: run by the tests, unmodified, on one rank."""

# mypy: ignore-errors
from __future__ import annotations

import functools
import json

import evaluate
import torch
from tokenizers import Tokenizer, models
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_pt_utils import LabelSmoother
from transformers.training_args import OptimizerNames

calls: dict[str, int] = {}


def counted(function):  # without functools.wraps
    def call(*args, **options):
        calls[function.__name__] = calls.get(function.__name__, 0) + 1
        return function(*args, **options)

    return call


class Decorated(Trainer):
    @counted
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    @counted
    def training_step(self, model, inputs):
        return super().training_step(model, inputs)

    @counted
    def get_batch_samples(self, epoch_iterator, num_batches):
        return super().get_batch_samples(epoch_iterator, num_batches)


class Partial(Trainer):
    def _weighted(self, model, inputs, return_outputs=False, weight=1.0):
        outputs = model(**inputs)
        loss = outputs.loss * weight
        return (loss, outputs) if return_outputs else loss

    compute_loss = functools.partialmethod(_weighted, weight=2.0)


class Extra(Trainer):
    """Arguments of its own, where Trainer has newer ones."""

    def compute_loss(self, model, inputs, return_outputs=False, weight=1.0):
        loss = model(**inputs)["loss"] * weight
        return (loss, None) if return_outputs else loss

    def training_step(self, model, inputs, factor=1.0):
        return super().training_step(model, inputs) * factor

    def log(self, logs, prefix=""):
        assert prefix in ("", "own"), prefix
        calls["log"] = calls.get("log", 0) + 1
        if not prefix:
            self.log({"extra": 1.0}, "own")
        super().log(logs)


class Smoother(LabelSmoother):
    @counted
    def __call__(self, model_output, labels, shift_labels=False):
        return super().__call__(model_output, labels, shift_labels)


class Collator(DataCollatorForLanguageModeling):
    @counted
    def torch_mask_tokens(self, inputs, special_tokens_mask=None):
        return super().torch_mask_tokens(inputs, special_tokens_mask)


words = {"[PAD]": 0, "[MASK]": 1, "a": 2, "b": 3}
padding, mask, *_ = words
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, "[PAD]")),
    pad_token=padding,
    mask_token=mask,
)
rows = [{"input_ids": [2, 3, 2], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(8)]
sizes = dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 8)
config = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=1)


def arguments(**options):
    return TrainingArguments(
        "/tmp/old", max_steps=2, report_to=[], save_strategy="no", logging_steps=1, learning_rate=0.0, **options
    )


def losses(kind, **options):
    torch.manual_seed(0)
    trainer = kind(BertForSequenceClassification(config).eval(), arguments(**options), train_dataset=rows)
    if options:
        trainer.label_smoother = Smoother(epsilon=0.1)
    trainer.train()
    return [round(entry["loss"], 1) for entry in trainer.state.log_history if "loss" in entry]


def metrics(prediction):
    return {"rows": len(prediction.label_ids)}


model = BertForSequenceClassification(config)
positional = Trainer(model, arguments(optim=OptimizerNames.ADAMW_HF), None, rows, rows, tokenizer, None, metrics)
positional.create_optimizer_and_scheduler(2)
batch = next(iter(positional.get_train_dataloader()))
print(
    json.dumps(
        {
            "losses": {
                "decorated": losses(Decorated),
                "partial": losses(Partial),
                "extra": losses(Extra),
                "smoothed": losses(Trainer, label_smoothing_factor=0.1),
            },
            "masked": list(Collator(tokenizer)([{"input_ids": [2, 3]}, {"input_ids": [2]}])["labels"].shape),
            "calls": calls,
            "step": positional.training_step(model, batch).item() > 0,
            "rows": positional.evaluate()["eval_rows"],
            "handler": positional.callback_handler.tokenizer is tokenizer,
            "tokens": positional.num_tokens(positional.get_train_dataloader(), 2),
            "optimizer": arguments().set_optimizer("adamw_hf").optim,
            "score": evaluate.load("f1", None, "metric").compute(predictions=[1, 1], references=[1, 1]),
        }
    )
)
