"""Runs in every rank: trains three epochs, resumes from checkpoints in each of them, and compares the rows.

Prints a line for each case and checkpoint: whether each rank had the rows of the uninterrupted run in each step.
Without arguments, the Trainer is a script's under `run`. With the argument `train`, it is that of `train`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.group.create import gather
from cpu_train_stack.speed.table import SPEED_UPS
from cpu_train_stack.train.loop.trainer import CpuTrainer


class Rows(list[dict[str, Any]]):
    def lengths(self) -> list[int]:
        return [len(row["input_ids"]) for row in self]


RANK = dist.get_rank()
COUNT = 18  # four steps of four rows, and an incomplete one
ROWS = Rows({"input_ids": [row + 5] * (1 + row * 7 % 6), "labels": row % 2} for row in range(COUNT))


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": (torch.tensor(ids) != 0).long(),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


class Recorder(Trainer):
    """`seen`: this rank's rows of each step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[int, list[int]] = {}

    def training_step(self, model: Any, inputs: dict[str, Any], *arguments: Any) -> Any:
        self.seen.setdefault(self.state.global_step, []).extend(inputs["input_ids"][:, 0].tolist())
        return super().training_step(model, inputs, *arguments)


class Own(Recorder, CpuTrainer):
    pass


class Plain(Recorder):
    """As in a user's script, with the adaptation balanced-ranks."""

    def train_from(self, checkpoint: Path | None) -> None:
        self.remove_callback(PrinterCallback)
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def train(
    output: Path, checkpoint: int = 0, kind: type[Own | Plain] = Own, **options: Any
) -> dict[int, list[int]]:
    set_seed(1)
    arguments = TrainingArguments(
        str(output),
        use_cpu=True,
        num_train_epochs=3,
        **{"per_device_train_batch_size": 2, **options},
        save_strategy="steps",
        save_steps=1,
        data_seed=3,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    config = BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    trainer: Own | Plain = kind(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Dataset.from_list(ROWS) if kind is Plain else ROWS,
        data_collator=collate,
    )
    trainer.train_from(output / f"checkpoint-{checkpoint}" if checkpoint else None)
    return trainer.seen


def together(seen: dict[int, list[int]]) -> list[list[int]]:
    """The rows of each step, on whichever rank they were."""
    return [sorted(row for part in gather(seen[step]) for row in part) for step in sorted(seen)]


def say(line: str) -> None:
    if RANK == 0:
        sys.stdout.write(f"{line}\n")


CASES: dict[str, dict[str, Any]] = {"of a script": {"kind": Plain}}
if "train" in sys.argv:
    CASES = {"shuffled": {}, "grouped": {"train_sampling_strategy": "group_by_length"}}
    situation = Situation((), catalogue.versions(), "", RANK, dist.get_world_size(), in_train=True)
    catalogue.install(situation, frozenset(), SPEED_UPS)
for name, options in CASES.items():
    output = Path(gather(tempfile.mkdtemp())[0])
    whole = train(output, **options)
    steps = together(whole)
    epochs = [sorted({row for step in steps[begin : begin + 5] for row in step}) for begin in (0, 5, 10)]
    say(f"{name}: every row once {epochs == [[row + 5 for row in range(COUNT)]] * 3}")
    for checkpoint in (3, 8, 10, 13):
        found = train(output, checkpoint, **options)
        same = all(gather(found == {step: rows for step, rows in whole.items() if step >= checkpoint}))
        say(f"{name}, from step {checkpoint}: {'same' if same else 'other'} rows")
    smaller = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    pairs = zip(steps[8:], together(train(output, 8, **{**options, **smaller})), strict=True)
    # accelerate fills up the last batches of an epoch.
    alike = all(one == other for step, (one, other) in enumerate(pairs, 8) if step % 5 < 4)
    say(f"{name}, in smaller batches: {'same' if alike else 'other'} steps")
if "train" in sys.argv:
    train(output, 8, per_device_train_batch_size=4)  # prints a warning
