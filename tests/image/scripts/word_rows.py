"""Runs in every rank: trains small models with the exchange of rows and with DDP's own.

Prints a line for each case: its name, how many weights there are, how many numbers went through collectives that
are called from Python in the last step with the exchange of rows, and the largest difference of a weight.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, TrainingArguments

from entrypoints.train import word_rows
from entrypoints.train.trainer import CpuTrainer

RANK = dist.get_rank()
STEPS = 4
sent = 0


def counted(original: Callable[..., Any], at: int) -> Callable[..., Any]:
    def collective(*arguments: Any, **options: Any) -> Any:
        global sent
        sent += arguments[at].numel()
        return original(*arguments, **options)

    return collective


class Trainer(CpuTrainer):
    def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
        global sent
        sent = 0
        loss: torch.Tensor = super().training_step(*arguments, **options)
        return loss


class Reads(BertForSequenceClassification):  # type: ignore[misc]  # untyped on the host
    """Has a use for the table that is no look-up."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        found = super().forward(*arguments, **options)
        found.loss = found.loss + self.bert.embeddings.word_embeddings.weight[7:9].sum() * 1e-3
        return found


def bert(kind: Any, words: int = 40000) -> torch.nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    made: torch.nn.Module = kind(config)
    return made


def rows(masked: bool, length: int) -> list[dict[str, torch.Tensor]]:
    found = []
    for row in range(64):
        words = torch.arange(length) * (row % 4 != 0) + row * 3 + 5  # of some rows all words are one
        found.append({"input_ids": words, "labels": words if masked else torch.tensor(row % 2)})
    return found


def train(model: torch.nn.Module, data: Any, exchange: str | None, micro_batches: int) -> torch.nn.Module:
    arguments = TrainingArguments(
        "/tmp/rows",
        use_cpu=True,
        max_steps=STEPS,
        learning_rate=0.01,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=micro_batches,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )
    Trainer(exchange=exchange, model=model, args=arguments, train_dataset=data).train_from(None)
    return model


def case(
    name: str,
    kind: Any = BertForSequenceClassification,
    length: int = 6,
    micro_batches: int = 1,
    wanted: tuple[str | None, str] = (None, "torch"),
    words: int = 40000,
) -> None:
    data = rows(kind is BertForMaskedLM, length)
    found, numbers = [], []
    for exchange in wanted:
        found.append(train(bert(kind, words), data, exchange, micro_batches))
        numbers.append(sent)
    pairs = zip(found[0].parameters(), found[1].parameters(), strict=True)
    difference = max(float((one - other).detach().abs().max()) for one, other in pairs)
    if RANK == 0:
        whole = sum(parameter.numel() for parameter in found[0].parameters())
        sys.stdout.write(f"{name} {whole} {numbers[0]} {difference!r}\n")


dist.all_reduce = counted(dist.all_reduce, 0)
dist.all_gather = counted(dist.all_gather, 1)
case("plain")
case("accumulated", micro_batches=2)
case("bf16", wanted=("bf16", "torch"))
case("shared_with_the_output", kind=BertForMaskedLM)
case("read_by_more_than_words", kind=Reads)
case("small", words=5000)
word_rows._LARGE = 1000
case("too_many_rows", words=700, length=500)
