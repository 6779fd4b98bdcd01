"""The jobs of `./inv bench train`. Pure: `./inv` imports it, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

QUESTION_ANSWERING = "question-answering"
CLASSIFICATION = "classification"
LANGUAGE = "language"


@dataclass(frozen=True)
class Job:
    """A model, a task and the batch of one rank.

    `model_type`: transformers' name. `sizes` override its default sizes, which are those of the base model.
    Weights are random, and every sample has `length` tokens. With `quantiles`, these include padding: the real
    tokens of a sample are drawn from that distribution. With `longest`, a batch is padded to its longest sample.

    LANGUAGE: a batch of chats is padded to its longest sample; `answers` is the share of tokens with a label, in
    percent, of a sample at each of the `quantiles`. Without quantiles, every token has a label. With `adapter`,
    the rank of LoRA adapters on all linear layers, the other weights are frozen.
    """

    name: str
    title: str
    task: str
    model_type: str
    length: int
    batch: int
    sizes: dict[str, Any] = field(default_factory=dict)
    quantiles: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    adapter: int = 0
    longest: bool = False

    @property
    def reads_text(self) -> bool:
        """Whether its samples can be the rows of a file: question answering and classification of real lengths."""
        return bool(self.quantiles) and self.task != LANGUAGE


_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_TINY = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}

# Tokens of a sample (BERT's uncased vocabulary), from the shortest to the longest in steps of 5% of the samples.
# The 4,076 pairs of sentences in MRPC's training set.
MRPC = (19, 32, 36, 39, 41, 44, 45, 47, 50, 51, 53, 55, 57, 59, 61, 62, 64, 67, 70, 74, 103)
# 276 questions of SQuAD with their contexts, in windows of 384 tokens that overlap by 128.
SQUAD = (42, 55, 62, 69, 75, 80, 83, 91, 98, 106, 117, 123, 127, 142, 154, 169, 179, 203, 213, 244, 384)
# The 2,312 chats of HH-RLHF's harmless-base test set (the chosen answers, cl100k_base's tokens and ChatML's
# template): 5 messages on average, and the mean share of the assistant's tokens at each length.
CHATS = (16, 32, 39, 48, 58, 70, 82, 94, 106, 119, 131, 145, 160, 176, 192, 215, 240, 277, 333, 413, 948)
ANSWERS = (28, 38, 45, 48, 50, 51, 51, 54, 55, 55, 58, 59, 59, 60, 60, 65, 67, 71, 70, 74, 76)


def _decoder(words: int, features: int, inner: int, layers: int, heads: int, shared: int) -> dict[str, Any]:
    """`shared`: the number of heads of keys and values."""
    return {
        "vocab_size": words,
        "hidden_size": features,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "tie_word_embeddings": True,
    }


_SMOLLM = _decoder(49152, 576, 1536, 30, 9, 3)
_QWEN = _decoder(151936, 896, 4864, 24, 14, 2)
_LLAMA = _decoder(128256, 2048, 8192, 16, 32, 8)

ALL = (
    Job("mrpc-guide", "BERT-base, MRPC's lengths padded to 128 tokens, batch 32", CLASSIFICATION, "bert", 128, 32,
        quantiles=MRPC),
    Job("squad-guide", "DistilBERT-base, SQuAD's lengths padded to 384 tokens, batch 12", QUESTION_ANSWERING,
        "distilbert", 384, 12, quantiles=SQUAD),
    Job("distilbert-qa", "DistilBERT-base, question answering, 384 tokens, batch 8", QUESTION_ANSWERING,
        "distilbert", 384, 8),
    Job("bert-classification", "BERT-base, classification, 128 tokens, batch 32", CLASSIFICATION, "bert", 128, 32),
    Job("minilm-mrpc", "MiniLM-L6's shape, MRPC's lengths padded to the longest, batch 32", CLASSIFICATION, "bert",
        128, 32, _MINILM, MRPC, longest=True),
    Job("tiny", "a BERT with two small layers, 32 tokens, batch 8: for tests of bench", CLASSIFICATION, "bert",
        32, 8, {**_TINY, "intermediate_size": 128}),
    Job("smollm-sft", "SmolLM2-135M's shape, all weights, chats, batch 8", LANGUAGE, "llama", 512, 8, _SMOLLM,
        CHATS, ANSWERS),
    Job("smollm-full", "the same, 512 tokens with labels, batch 4", LANGUAGE, "llama", 512, 4, _SMOLLM),
    Job("qwen-lora", "Qwen2.5-0.5B's shape, LoRA (16), chats, batch 4", LANGUAGE, "qwen2", 1024, 4, _QWEN,
        CHATS, ANSWERS, adapter=16),
    Job("qwen-full", "the same, 1024 tokens with labels, batch 2", LANGUAGE, "qwen2", 1024, 2, _QWEN, adapter=16),
    Job("llama-lora", "Llama-3.2-1B's shape, LoRA (16), chats, batch 2", LANGUAGE, "llama", 1024, 2, _LLAMA,
        CHATS, ANSWERS, adapter=16),
    Job("tiny-lora", "a decoder with two small layers, LoRA (4), chats, batch 4: for tests of bench", LANGUAGE,
        "qwen2", 64, 4, _decoder(1000, 64, 128, 2, 2, 1), (8, 24, 64), (30, 50, 70), adapter=4),
)  # fmt: skip
BY_NAME = {job.name: job for job in ALL}
# The jobs without --job.
DEFAULT = ("mrpc-guide", "squad-guide", "distilbert-qa", "bert-classification", "minilm-mrpc")
