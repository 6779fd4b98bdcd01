"""The models and the data of the jobs, created with transformers' classes as in its example scripts."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    default_data_collator,
)

try:
    from transformers.initialization import no_init_weights
except ImportError:  # transformers 4
    from transformers.modeling_utils import no_init_weights

from benchmarks.jobs import LANGUAGE, QUESTION_ANSWERING, Job

# The mount point of a pretrained encoder, for the words of a file. Its vocabulary is BERT's.
PRETRAINED = "/bench/model"
# Enough samples that no step of a measurement sees one twice.
SAMPLES = 1024
_CLASSES = {LANGUAGE: AutoModelForCausalLM, QUESTION_ANSWERING: AutoModelForQuestionAnswering}
IGNORED = -100  # the label of tokens without a loss


def _class(job: Job) -> Any:
    return _CLASSES.get(job.task, AutoModelForSequenceClassification)


def create(job: Job, attention: str = "sdpa") -> Any:
    """The model with random weights. With `attention` "eager", attention consists of separate matrix products."""
    config = AutoConfig.for_model(job.model_type, **job.sizes)
    # As from_pretrained does, without memory for an output layer that is then replaced by the word embedding.
    with no_init_weights():
        model = _class(job).from_config(config, attn_implementation=attention)
    model.tie_weights()
    model.init_weights()
    return with_adapter(model, job.adapter) if job.adapter else model


def with_adapter(model: Any, rank: int) -> Any:
    """The model with LoRA adapters on all linear layers except the head, as in peft's documentation."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear"
    )
    with torch.no_grad():  # the weights of these models are published in bf16
        for part in (part for weight in model.parameters() for part in weight.split(1024)):
            part.copy_(part.bfloat16())
    return get_peft_model(model, config)


def tokenizer(job: Job) -> Any:
    """A tokenizer with as many words as the model has. TRL asks it for the padding token."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(job.sizes["vocab_size"])}
    first = next(iter(words))
    inner = Tokenizer(models.WordLevel(words, unk_token=first))
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token=first, pad_token=first, eos_token=first)


def random_batch(job: Job, vocabulary: int, samples: int, length: int) -> dict[str, Any]:
    """A batch of random tokens: int64 tensors input_ids and attention_mask of shape (samples, length), and labels.

    The labels are start_positions and end_positions for question answering, otherwise labels, of shape (samples,),
    and of shape (samples, length) for LANGUAGE.
    """
    batch = {"input_ids": torch.randint(0, vocabulary, (samples, length))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if job.task == QUESTION_ANSWERING:
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.randint(0, length, (samples,))
    elif job.task == LANGUAGE:
        batch["labels"] = batch["input_ids"].clone()
    else:
        batch["labels"] = torch.randint(0, 2, (samples,))
    return batch


def pad(job: Job, batch: dict[str, Any]) -> None:
    """Turn the end of each sample into padding, as the guides' scripts do with pad_to_max_length."""
    lengths = drawn_lengths(job.quantiles, SAMPLES)
    padding = torch.arange(job.length) >= lengths[:, None]
    batch["input_ids"][padding] = 0  # BERT's and DistilBERT's padding token
    batch["attention_mask"][padding] = 0
    for name in ("start_positions", "end_positions"):
        if name in batch:
            batch[name] %= lengths


def drawn_lengths(quantiles: Sequence[int], samples: int) -> torch.Tensor:
    """Numbers of tokens from the distribution with these equidistant quantiles: int64 [samples]."""
    places = torch.rand(samples) * (len(quantiles) - 1)
    values = torch.tensor(quantiles, dtype=torch.float32)
    below = places.long()
    return torch.lerp(values[below], values[below + 1], places - below).round().long()


def chats(job: Job, batch: dict[str, Any]) -> Dataset:
    """The batch as rows of different lengths. Only the end of each, the answers, has labels."""
    lengths = drawn_lengths(job.quantiles, SAMPLES).clamp(max=job.length).tolist()
    rows = []
    for length, ids in zip(lengths, batch["input_ids"].tolist()):
        place = next(index for index, longest in enumerate(job.quantiles) if length <= longest)
        prompt = length - round(length * job.answers[place] / 100)
        labels = [IGNORED] * prompt + ids[prompt:length]
        rows.append({"input_ids": ids[:length], "attention_mask": [1] * length, "labels": labels})
    return Dataset.from_list(rows)


def trimmed(batch: dict[str, Any]) -> Dataset:
    """The samples of a batch with one label each, without their padding."""
    lengths = batch["attention_mask"].sum(1).tolist()
    samples = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), lengths)
    rows = [{"input_ids": ids[:n], "attention_mask": [1] * n, "labels": label} for ids, label, n in samples]
    return Dataset.from_list(rows)


def padded(samples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch of samples, padded to the longest one. The labels are those of tokens, or one for each sample."""
    batch = {}
    for name, value in {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}.items():
        found = [torch.tensor(row[name]) for row in samples]
        has_tokens = found[0].dim() > 0
        batch[name] = torch.nn.utils.rnn.pad_sequence(found, True, value) if has_tokens else torch.stack(found)
    return batch


def pairs(job: Job, path: Path, tokenizer: Any) -> dict[str, Any]:
    """The rows of a csv file with sentence1, sentence2 and label, as MRPC's.

    Truncated to the job's length, and padded to it, unless a batch is padded to its longest sample.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    texts = ([row["sentence1"] for row in rows], [row["sentence2"] for row in rows])
    padding = False if job.longest else "max_length"
    encoded = tokenizer(*texts, truncation=True, max_length=job.length, padding=padding)
    return {**encoded, "label": [int(row["label"]) for row in rows]}


def answered(entry: dict[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    """The answerable questions of an article of SQuAD's file, or of a row of run_qa.py's.

    Each with its context, its first answer, and the place of this answer in the context, in characters.
    """
    for passage in entry.get("paragraphs", ()):
        for one in passage["qas"]:
            for answer in one["answers"][:1]:
                yield one["question"], passage["context"], answer["text"], answer["answer_start"]
    if "paragraphs" not in entry:
        for answer, start in list(zip(entry["answers"]["text"], entry["answers"]["answer_start"]))[:1]:
            yield entry["question"], entry["context"], answer, start


def questions(job: Job, path: Path, tokenizer: Any) -> dict[str, Any]:
    """The answerable questions of a file in SQuAD's format or in run_qa.py's, in windows of the job's length.

    Windows overlap by 128 tokens. In a window without the answer, the positions are 0, as in run_qa.py.
    """
    rows = [row for entry in json.loads(path.read_text(encoding="utf-8"))["data"] for row in answered(entry)]
    windows = tokenizer(
        [question.lstrip() for question, _context, _answer, _start in rows],
        [context for _question, context, _answer, _start in rows],
        truncation="only_second",
        max_length=job.length,
        stride=128,
        return_overflowing_tokens=True,
        padding="max_length",
    )
    starts, ends = [], []
    for window, row in enumerate(windows.pop("overflow_to_sample_mapping")):
        _question, _context, answer, first = rows[row]
        tokens = [windows.char_to_token(window, place, 1) for place in (first, first + len(answer) - 1)]
        start, end = (0, 0) if None in tokens else tokens
        starts.append(start)
        ends.append(end)
    return {**windows, "start_positions": starts, "end_positions": ends}


def data(job: Job, path: Path | None) -> tuple[Dataset, Any]:
    """The samples of the data set, and the collator that makes batches of them.

    `path`: a file of rows. Without it, the tokens are random.
    """
    if path:
        tokenizer = AutoTokenizer.from_pretrained(PRETRAINED)
        read = questions if job.task == QUESTION_ANSWERING else pairs
        collator = DataCollatorWithPadding(tokenizer) if job.longest else default_data_collator
        return Dataset.from_dict(dict(read(job, path, tokenizer))), collator
    if job.answers:
        return chats(job, random_batch(job, job.sizes["vocab_size"], SAMPLES, job.length)), padded
    vocabulary = AutoConfig.for_model(job.model_type, **job.sizes).vocab_size
    batch = random_batch(job, vocabulary, SAMPLES, job.length)
    if job.quantiles:
        pad(job, batch)
    if job.longest:
        return trimmed(batch), padded
    return Dataset.from_dict({name: values.tolist() for name, values in batch.items()}), default_data_collator
