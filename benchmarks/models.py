"""The models and the data of the jobs, by transformers' own classes, as its example scripts make them."""

from __future__ import annotations

import csv
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    default_data_collator,
)

from benchmarks.jobs import QUESTION_ANSWERING, Job

# Where ./inv mounts the pretrained encoder and the pairs of sentences.
PRETRAINED = "/bench/model"
PAIRS = "/bench/data/pairs.csv"
# Enough that no step of a measurement sees a sample twice.
SAMPLES = 1024


def _class(job: Job) -> Any:
    return AutoModelForQuestionAnswering if job.task == QUESTION_ANSWERING else AutoModelForSequenceClassification


def made(job: Job) -> Any:
    """The model that is trained."""
    if job.is_pretrained:
        return _class(job).from_pretrained(PRETRAINED)
    return untrained(job)


def untrained(job: Job, attention: str = "sdpa") -> Any:
    """The same with random weights. `attention`: "eager" takes it apart into products."""
    if job.is_pretrained:
        config = AutoConfig.from_pretrained(PRETRAINED)
    else:
        config = AutoConfig.for_model(job.model_type, **job.sizes)
    return _class(job).from_config(config, attn_implementation=attention)


def random_batch(job: Job, vocabulary: int, samples: int, length: int) -> dict[str, Any]:
    """Inputs of so many samples, full of tokens."""
    batch = {"input_ids": torch.randint(0, vocabulary, (samples, length))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if job.task == QUESTION_ANSWERING:
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.randint(0, length, (samples,))
    else:
        batch["labels"] = torch.randint(0, 2, (samples,))
    return batch


def data(job: Job) -> tuple[list[dict[str, Any]], Any]:
    """The samples of the set, and what makes a batch of them."""
    if not job.is_pretrained:
        vocabulary = AutoConfig.for_model(job.model_type, **job.sizes).vocab_size
        whole = random_batch(job, vocabulary, SAMPLES, job.length)
        return [{name: values[row] for name, values in whole.items()} for row in range(SAMPLES)], (
            default_data_collator
        )
    tokenizer = AutoTokenizer.from_pretrained(PRETRAINED)
    with open(PAIRS, encoding="utf-8", newline="") as stream:  # noqa: PTH123 - as the examples do
        rows = list(csv.DictReader(stream))
    encoded = tokenizer(
        [row["sentence1"] for row in rows], [row["sentence2"] for row in rows], truncation=True, max_length=128
    )
    samples = [
        {**{name: values[number] for name, values in encoded.items()}, "label": int(row["label"])}
        for number, row in enumerate(rows)
    ]
    return samples, DataCollatorWithPadding(tokenizer)
