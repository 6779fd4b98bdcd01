"""A Trainer and a callback as users wrote them for transformers 4: run by the tests, unmodified, on two ranks."""

# mypy: ignore-errors
from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

calls: dict[str, int] = {}


def counted(function):
    @functools.wraps(function)
    def call(*args, **options):
        calls[function.__name__] = calls.get(function.__name__, 0) + 1
        return function(*args, **options)

    return call


class WithGather:
    """A mixin, whose method Trainer calls too."""

    def _get_train_sampler(self):
        calls["_get_train_sampler"] = calls.get("_get_train_sampler", 0) + 1
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Old(WithGather, Trainer):
    @counted
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"])
        return (loss, outputs) if return_outputs else loss

    @counted
    def training_step(self, model, batch):
        assert not self.use_apex
        assert not self.do_grad_scaling
        return super().training_step(model, batch)

    @counted
    def log(self, logs):
        super().log(logs)

    @counted
    def save_model(self, output_dir=None):
        super().save_model(output_dir)

    @counted
    def create_optimizer(self):
        return super().create_optimizer()

    @counted
    def create_scheduler(self, num_training_steps):
        return super().create_scheduler(num_training_steps)

    @counted
    def _wrap_model(self, model, training=True):
        return super()._wrap_model(model, training)

    @counted
    def _save_checkpoint(self, model, trial, metrics=None):
        super()._save_checkpoint(model, trial, metrics=metrics)

    @counted
    def _maybe_log_save_evaluate(self, tr_loss, model, trial, epoch, ignore_keys_for_eval):
        assert isinstance(model, torch.nn.Module)
        if self.state.global_step % 2 == 0:
            self.log({"loss": tr_loss.item() / 2})
            self._save_checkpoint(model, trial, metrics=None)
        super()._maybe_log_save_evaluate(tr_loss, model, trial, epoch, ignore_keys_for_eval)

    def __init__(
        self, model, args, collator, train, evaluation, tokenizer, init=None, metrics=None, callbacks=None,
        optimizers=(None, None), preprocess=None,
    ):  # fmt: skip
        super().__init__(
            model, args, collator, train, evaluation, tokenizer, init, metrics, callbacks, optimizers, preprocess
        )

    @staticmethod
    def get_optimizer_cls_and_kwargs(args):
        calls["get_optimizer_cls_and_kwargs"] = calls.get("get_optimizer_cls_and_kwargs", 0) + 1
        return torch.optim.SGD, {"lr": args.learning_rate}


class Callback(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, tokenizer=None, optimizer=None):
        calls["tokenizer"] = calls.get("tokenizer", 0) + (tokenizer is not None and optimizer is not None)

    def on_epoch_end(self, args, state, control, **kwargs):
        calls["kwargs"] = calls.get("kwargs", 0) + (kwargs["tokenizer"] is not None)


words = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1}, "[PAD]"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")  # noqa: S106
rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(16)]
torch.manual_seed(0)
sizes = {
    "vocab_size": 9,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}
args = TrainingArguments(
    "/tmp/old",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    num_train_epochs=1,
    logging_steps=1,
    report_to=[],
    save_total_limit=1,
)
trainer = Old(
    BertForSequenceClassification(BertConfig(**sizes)), args, None, rows, rows, tokenizer, callbacks=[Callback],
    metrics=lambda prediction: {"rows": len(prediction.label_ids)},
)  # fmt: skip
trainer.train(model_path=None)
metrics = trainer.evaluate()
gathered = trainer._nested_gather(torch.tensor([args.local_rank]))
print(
    json.dumps(
        {
            "rank": int(os.environ["RANK"]),
            "local_rank": args.local_rank,
            "calls": calls,
            "rows": metrics["eval_rows"],
            "loss": round(trainer.state.log_history[0]["loss"], 4),
            "same": trainer.tokenizer is tokenizer and trainer.processing_class is tokenizer,
            "gathered": gathered.tolist(),
            "checkpoints": [Path(name).name for name in trainer._sorted_checkpoints("/tmp/old")],
            "parameters": trainer.get_num_trainable_parameters() > 0,
            "rates": trainer.get_learning_rates() == [group["lr"] for group in trainer.optimizer.param_groups],
        }
    )
    + "\n",
    end="",
    flush=True,
)
