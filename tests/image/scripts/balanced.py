"""Trainer on rows that are padded to 32 tokens: prints the tokens of each batch, and the loss of each step."""

from __future__ import annotations

import os
import random
from typing import Any

import datasets
import torch
import transformers

WIDTH, ROWS = 32, 44  # five steps of eight rows, and an incomplete one


def rows() -> list[dict[str, Any]]:
    chance = random.Random(3)
    found = []
    for number in range(ROWS):
        length = chance.randint(2, WIDTH)
        mask = [1] * length + [0] * (WIDTH - length)
        found.append({"input_ids": [5 + number % 30] * WIDTH, "attention_mask": mask, "labels": number % 2})
    return found


def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
    together = {name: torch.tensor([row[name] for row in batch]) for name in batch[0]}
    print(f"rank {os.environ['RANK']}: {int(together['attention_mask'].sum())} tokens", flush=True)
    return together


def main() -> None:
    transformers.set_seed(1)
    config = transformers.BertConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=40,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(
        "/tmp/balanced", per_device_train_batch_size=4, num_train_epochs=2, learning_rate=0.01, seed=1,
        save_strategy="no", logging_steps=1, disable_tqdm=True, report_to=[], remove_unused_columns=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.BertForSequenceClassification(config),
        arguments,
        train_dataset=datasets.Dataset.from_list(rows()),
        data_collator=collate,
    )
    trainer.train()
    if os.environ["RANK"] == "0":
        print("losses", *[f"{float(entry['loss']):.5f}" for entry in trainer.state.log_history if "loss" in entry])


main()
