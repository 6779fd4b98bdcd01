"""Small models, their rows and a Trainer, for the ways to train. Every step has the same eight rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import TrainingArguments

ROWS, TOKENS, WORDS, UPDATES = 8, 6, 24, 2
SMALL = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
DECODER = {**SMALL, "num_key_value_heads": 2, "attention_dropout": 0.0, "pad_token_id": 0}
GPT2 = {
    "vocab_size": WORDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "pad_token_id": 0,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A way to train. `build`: returns a new Trainer. `options`: of its TrainingArguments.

    `accumulates`: whether rows of several steps may be one batch, which in-batch negatives do not allow.
    """

    build: Callable[[TrainingArguments], Any]
    options: dict[str, Any] = field(default_factory=dict)
    config: Callable[..., TrainingArguments] = TrainingArguments
    accumulates: bool = True


def rows(make: Callable[[int, list[int]], dict[str, Any]], equal: bool = False) -> list[dict[str, Any]]:
    """The rows of all steps. `make`: returns a row, from its number and its random words.

    `equal`: all rows of a step are equal, so that experts get the same shares of each part of it.
    """
    made = []
    for number in range(ROWS * UPDATES):
        generator = torch.Generator().manual_seed(number // ROWS if equal else number)
        words = torch.randint(3, WORDS, (TOKENS,), generator=generator).tolist()
        made.append({"input_ids": words, "attention_mask": [1] * TOKENS, **make(number, words)})
    return made


CLASSES = rows(lambda number, _words: {"labels": number * 7 % 5 % 2})
VALUES = rows(lambda number, _words: {"labels": number / 8})
TAGS = rows(lambda _number, words: {"labels": [word % 3 for word in words]})
ANSWERS = rows(lambda number, _words: {"start_positions": number % 3, "end_positions": 3 + number % 3})
TEXTS = rows(lambda _number, words: {"labels": words})
EQUAL_TEXTS = rows(lambda _number, words: {"labels": words}, equal=True)
# Ranks and steps have different numbers of labels.
SHARES = rows(lambda number, words: {"labels": [*[-100] * (number % 4), *words[number % 4 :]]})
MASKED = rows(lambda _number, words: {"labels": [*words[:2], *[-100] * (TOKENS - 2)]})


def trainer(
    model: Any, data: list[dict[str, Any]], kind: type[transformers.Trainer] = transformers.Trainer, **options: Any
) -> Callable[[TrainingArguments], Any]:
    """A `build` of a Way. `model`: a function that returns a new one."""

    def build(arguments: TrainingArguments) -> Any:
        collate = transformers.default_data_collator
        return kind(model=model(), args=arguments, train_dataset=data, data_collator=collate, **options)

    return build


def of(kind: str, sizes: dict[str, Any] | None = None, **options: Any) -> Callable[[], Any]:
    """A function that creates a random model of a class of transformers."""
    return functools.partial(_create, kind, {**(SMALL if sizes is None else sizes), **options})


def _create(kind: str, options: dict[str, Any]) -> Any:
    model = getattr(transformers, kind)
    return model(model.config_class(**options))


def llama() -> Any:
    return of("LlamaForCausalLM", DECODER)()


def bert() -> Any:
    return of("BertForSequenceClassification")()
