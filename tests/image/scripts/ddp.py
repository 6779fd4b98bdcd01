"""Runs in every rank: trains small models with DDP as the trainer configures it, and with DDP's defaults.

Usage: ddp.py [views] [rows|plain]

views: prints a line of numbers for each case: in how many pieces of memory the gradients of the last step lay and
the sum of the weights, first with gradients in the buckets and then without.
rows: prints a line for each case: its name, how many weights there are, how many numbers went through collectives
that are called from Python in the last step with the exchange of rows, and the largest difference of a weight to
DDP's own exchange, on any rank.
plain: the same for two of its cases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import transformers
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, TrainingArguments

from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.group.create import gather
from cpu_train_stack.speed import gradients, word_rows
from cpu_train_stack.speed.table import SPEED_UPS
from cpu_train_stack.train.loop.trainer import CpuTrainer

RANK = dist.get_rank()
STEPS = 4


class Rows(list[dict[str, torch.Tensor]]):
    def lengths(self) -> list[int]:
        return [len(row["input_ids"]) for row in self]


class Step:
    """`sent` and `pieces` are of the last step."""

    sent = 0
    pieces = 0


def observe(trainer: Any) -> None:
    """Keep the figures of each step of this trainer in Step."""
    train_step = trainer.training_step

    def observed(model: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        Step.sent = 0
        loss: torch.Tensor = train_step(model, *arguments, **options)
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        assert gradients
        Step.pieces = len({each.untyped_storage().data_ptr() for each in gradients})
        return loss

    trainer.training_step = observed


def counted(original: Callable[..., Any]) -> Callable[..., Any]:
    """A collective whose tensor comes last."""

    def collective(*tensors: Any, **options: Any) -> Any:
        Step.sent += tensors[-1].numel()
        return original(*tensors, **options)

    return collective


def reads(config: BertConfig) -> torch.nn.Module:
    """Has a use for the table that is no look-up."""
    model: torch.nn.Module = BertForSequenceClassification(config)
    table = model.get_submodule("bert.embeddings.word_embeddings").get_parameter("weight")

    def add(_module: Any, _inputs: Any, found: Any) -> Any:
        found.loss = found.loss + table[7:9].sum() * 1e-3
        return found

    model.register_forward_hook(add)
    return model


class Positions(torch.nn.Embedding):
    """As LED's: it gets a shape."""

    def forward(self, shape: tuple[int, int]) -> torch.Tensor:
        return super().forward(torch.arange(shape[1]))


def positions(config: BertConfig) -> torch.nn.Module:
    """Its only large table that the output does not share is one of positions."""
    model: torch.nn.Module = BertForMaskedLM(config)
    model.positions = Positions(config.vocab_size, config.hidden_size)

    def add(_module: Any, _inputs: Any, found: Any) -> Any:
        found.loss = found.loss + model.positions((2, 6)).sum() * 1e-3
        return found

    model.register_forward_hook(add)
    return model


def reads_later(config: BertConfig) -> torch.nn.Module:
    """The same on rank 1 alone, and not before the third step."""
    model: torch.nn.Module = BertForSequenceClassification(config)
    table = model.get_submodule("bert.embeddings.word_embeddings").get_parameter("weight")
    forwards = 0

    def add(_module: Any, _inputs: Any, found: Any) -> Any:
        nonlocal forwards
        forwards += 1
        if RANK == 1 and forwards > 2:
            found.loss = found.loss + table[7:9].sum() * 1e-3
        return found

    model.register_forward_hook(add)
    return model


def train(kind: Any, words: int, length: int, micro_batches: int, exchange: str | None) -> torch.nn.Module:
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
    rows = Rows()
    for row in range(64):
        ids = torch.arange(length) * (row % 4 != 0) + row * 3 + 5  # of some rows all words are one
        rows.append(
            {"input_ids": ids, "labels": ids if kind in (BertForMaskedLM, positions) else torch.tensor(row % 2)}
        )
    arguments = TrainingArguments(
        "/tmp/ddp",
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
    model: torch.nn.Module = kind(config)
    if exchange == "script":  # the trainer of a script, which `run` adapts
        script = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        script.remove_callback(transformers.PrinterCallback)
        observe(script)
        script.train()
    else:
        trainer = CpuTrainer(exchange=exchange, model=model, args=arguments, train_dataset=rows)
        observe(trainer)
        trainer.train_from(None)
    return model


def views(micro_batches: int) -> None:
    def run() -> str:
        model = train(BertForSequenceClassification, 300, 6, micro_batches, None)
        total = sum(parameter.detach().double().abs().sum() for parameter in model.parameters())
        return f"{Step.pieces} {float(total)!r}"

    told = run()
    with patch.object(gradients, "share"):
        plain = run()
    if RANK == 0:
        sys.stdout.write(f"{told} {plain}\n")


def rows(
    name: str,
    kind: Any = BertForSequenceClassification,
    words: int = 40000,
    length: int = 6,
    micro_batches: int = 1,
    exchange: str | None = None,
) -> None:
    found = train(kind, words, length, micro_batches, exchange)
    sent = Step.sent
    with patch.object(word_rows, "table", return_value=None):
        plain = train(kind, words, length, micro_batches, "script" if exchange == "script" else "torch")
    pairs = zip(found.parameters(), plain.parameters(), strict=True)
    difference = max(float((one - other).detach().abs().max()) for one, other in pairs)
    difference = max(gather(difference))
    if RANK == 0:
        whole = sum(parameter.numel() for parameter in found.parameters())
        sys.stdout.write(f"{name} {whole} {sent} {difference!r}\n")


if {"rows", "plain"} & {*sys.argv}:
    dist.all_reduce = counted(dist.all_reduce)
    dist.all_gather = counted(dist.all_gather)
if "rows" in sys.argv:
    rows("script", exchange="script")
catalogue.install(
    Situation((), catalogue.versions(), "", RANK, dist.get_world_size(), in_train=True),
    frozenset(),
    [one for one in SPEED_UPS if one.name in ("gradient-buckets", "word-rows")],
)
if "views" in sys.argv:
    views(micro_batches=1)
    views(micro_batches=2)
if {"rows", "plain"} & {*sys.argv}:
    rows("plain")
    rows("bf16", exchange="bf16")
if "rows" in sys.argv:
    rows("accumulated", micro_batches=2)
    rows("shared_with_the_output", kind=BertForMaskedLM)
    rows("read_by_more_than_words", kind=reads)
    rows("read_later_by_more_than_words", kind=reads_later)
    rows("positions", kind=positions)
    rows("small", words=5000)
    word_rows._LARGE = 1000
    rows("too_many_rows", words=700, length=500)
