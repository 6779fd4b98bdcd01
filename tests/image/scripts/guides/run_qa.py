"""In place of the guides' run_qa.py of transformers 4.24: its imports, flags and Trainer, but a tiny model."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from huggingface_hub.constants import HF_HUB_CACHE
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    is_torch_tpu_available,
)
from transformers.utils import send_example_telemetry


@dataclass
class Arguments:
    model_name_or_path: str
    dataset_name: str = ""
    task_name: str = ""
    max_seq_length: int = 384
    doc_stride: int = 128
    max_eval_samples: int = 0


ours, training = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()
send_example_telemetry("run_qa", ours)
config = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
rows = [{"input_ids": torch.tensor([1, 2, 3, number]), "labels": number % 2} for number in range(8)]
result = Trainer(BertForSequenceClassification(config), training, train_dataset=rows).train()
group = dist.get_backend() if dist.is_initialized() else "no group"
sys.stdout.write(
    f"trained {result.global_step} step, {training.world_size} ranks, {group}, bf16 {training.bf16}\n"
    f"models in {HF_HUB_CACHE}, data sets in {os.environ.get('HF_DATASETS_CACHE')}\n"
)
if ours.max_eval_samples:  # otherwise without these imports, which take seconds
    import evaluate

    answers = {"answer_start": [0], "text": ["a"]}
    score = evaluate.load("squad").compute(
        predictions=[{"id": "0", "prediction_text": "a"}], references=[{"id": "0", "answers": answers}]
    )
    sys.stdout.write(f"exact match {score['exact_match']}\n")
sys.stdout.flush()
