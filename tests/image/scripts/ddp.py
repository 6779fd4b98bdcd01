"""Runs in every rank of two: trains a tiny BERT twice, on what DDP is told by the trainer here, and as it is told
nothing. Prints for each: in how many pieces of memory the gradients of the last step lay, and the weights' sum."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from entrypoints.train import ddp
from entrypoints.train.trainer import CpuTrainer

PIECES: list[int] = []


class Trainer(CpuTrainer):
    """Looks at the gradients after each backward pass."""

    def training_step(self, model: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(model, *arguments, **options)
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        assert gradients
        PIECES.append(len({each.untyped_storage().data_ptr() for each in gradients}))
        return loss


def train(micro_batches: int) -> str:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.tensor([2, 5 + row % 40, 3]), "labels": torch.tensor(row % 2)} for row in range(32)
    ]
    arguments = TrainingArguments(
        "/tmp/ddp",
        use_cpu=True,
        max_steps=4,
        learning_rate=0.01,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=micro_batches,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train_from(None)
    total = sum(parameter.detach().double().abs().sum() for parameter in model.parameters())
    return f"{PIECES[-1]} {float(total)!r}"


for micro_batches in (1, 2):
    told = train(micro_batches)
    with patch.object(ddp, "keep_gradients_in_buckets"):
        plain = train(micro_batches)
    if dist.get_rank() == 0:
        sys.stdout.write(f"{told} {plain}\n")
