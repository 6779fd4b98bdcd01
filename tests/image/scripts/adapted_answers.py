"""Checks in the image: an adapter for question answering gets the inputs of its model."""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    DistilBertConfig,
    DistilBertForQuestionAnswering,
    RobertaConfig,
    RobertaForQuestionAnswering,
)

from cpu_train_stack.train.flags.arguments import TaskArguments
from cpu_train_stack.train.model import adapters
from cpu_train_stack.train.tasks import answering

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "dropout": 0.0}
IDS = torch.arange(1, 9)[None]
LABELS = {"start_positions": torch.tensor([2]), "end_positions": torch.tensor([3])}
bert = BertConfig(**SIZES, intermediate_size=24, initializer_range=0.5)
distilbert = DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=24)
models = [
    (BertForQuestionAnswering(bert), {"token_type_ids": (IDS > 4).long()}),
    (RobertaForQuestionAnswering(RobertaConfig(**SIZES, intermediate_size=24)), {}),
    (DistilBertForQuestionAnswering(distilbert), {}),
]
for model, types in models:
    batch = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), **types, **LABELS}
    with torch.no_grad():
        expected = model.eval()(**batch).loss
        arguments = TaskArguments(model_name_or_path="x", use_peft=True)
        adapted = adapters.attach(model, answering.TASK, arguments, []).eval()
        found = adapted(**batch).loss
    assert torch.allclose(found, expected), (type(model).__name__, found, expected)
