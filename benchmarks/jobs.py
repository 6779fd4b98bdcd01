"""The jobs of `./inv bench train`. Pure: `./inv` imports it, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

QUESTION_ANSWERING = "question-answering"
CLASSIFICATION = "classification"


@dataclass(frozen=True)
class Job:
    """A model, a task and the batch of one rank.

    `model_type`: transformers' name. `sizes` override its default sizes, which are those of the base model.
    Weights are random, and every sample has `length` tokens. If `length` is 0, the weights are those of the
    pretrained encoder, samples are pairs of sentences, and a batch is padded to its longest sample.
    """

    name: str
    title: str
    task: str
    model_type: str
    length: int
    batch: int
    sizes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_pretrained(self) -> bool:
        return self.length == 0


_TINY = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}

ALL = (
    Job("distilbert-qa", "DistilBERT-base, question answering, 384 tokens, batch 8", QUESTION_ANSWERING,
        "distilbert", 384, 8),
    Job("bert-classification", "BERT-base, classification, 128 tokens, batch 32", CLASSIFICATION, "bert", 128, 32),
    Job("minilm-mrpc", "MiniLM-L6, pairs of sentences as MRPC's, batch 32", CLASSIFICATION, "bert", 0, 32),
    Job("tiny", "a BERT with two small layers, 32 tokens, batch 8: for tests of bench", CLASSIFICATION, "bert",
        32, 8, {**_TINY, "intermediate_size": 128}),
)  # fmt: skip
BY_NAME = {job.name: job for job in ALL}
# The jobs without --job.
DEFAULT = ("distilbert-qa", "bert-classification", "minilm-mrpc")
