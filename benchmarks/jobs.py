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
    Weights are random, and every sample has `length` tokens. With `quantiles`, these include padding: the real
    tokens of a sample are drawn from that distribution. If `length` is 0, the weights are those of the pretrained
    encoder, samples are pairs of sentences, and a batch is padded to its longest sample.
    """

    name: str
    title: str
    task: str
    model_type: str
    length: int
    batch: int
    sizes: dict[str, Any] = field(default_factory=dict)
    quantiles: tuple[int, ...] = ()

    @property
    def is_pretrained(self) -> bool:
        return self.length == 0


_TINY = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}

# Tokens of a sample (BERT's uncased vocabulary), from the shortest to the longest in steps of 5% of the samples.
# The 4,076 pairs of sentences in MRPC's training set.
MRPC = (19, 32, 36, 39, 41, 44, 45, 47, 50, 51, 53, 55, 57, 59, 61, 62, 64, 67, 70, 74, 103)
# 276 questions of SQuAD with their contexts, in windows of 384 tokens that overlap by 128.
SQUAD = (42, 55, 62, 69, 75, 80, 83, 91, 98, 106, 117, 123, 127, 142, 154, 169, 179, 203, 213, 244, 384)

ALL = (
    Job("mrpc-guide", "BERT-base, MRPC's lengths padded to 128 tokens, batch 32", CLASSIFICATION, "bert", 128, 32,
        quantiles=MRPC),
    Job("squad-guide", "DistilBERT-base, SQuAD's lengths padded to 384 tokens, batch 12", QUESTION_ANSWERING,
        "distilbert", 384, 12, quantiles=SQUAD),
    Job("distilbert-qa", "DistilBERT-base, question answering, 384 tokens, batch 8", QUESTION_ANSWERING,
        "distilbert", 384, 8),
    Job("bert-classification", "BERT-base, classification, 128 tokens, batch 32", CLASSIFICATION, "bert", 128, 32),
    Job("minilm-mrpc", "MiniLM-L6, pairs of sentences as MRPC's, batch 32", CLASSIFICATION, "bert", 0, 32),
    Job("tiny", "a BERT with two small layers, 32 tokens, batch 8: for tests of bench", CLASSIFICATION, "bert",
        32, 8, {**_TINY, "intermediate_size": 128}),
)  # fmt: skip
BY_NAME = {job.name: job for job in ALL}
# The jobs without --job.
DEFAULT = ("mrpc-guide", "squad-guide", "distilbert-qa", "bert-classification", "minilm-mrpc")
