"""Trainers of sentence-transformers and trl, which an image has with ./inv build --with."""

from __future__ import annotations

import functools
from typing import Any

import sentence_transformers
import torch.distributed as dist
import transformers
import trl
from common import DECODER, ROWS, SMALL, UPDATES, Way, of
from datasets import Dataset
from heads import EXPERTS
from sentence_transformers import SentenceTransformerTrainingArguments, losses
from sentence_transformers.models import Pooling
from sentence_transformers.models import Transformer as Encoder
from tokenizers import Tokenizer, models, pre_tokenizers

NAMES = ["[PAD]", "[UNK]", "[EOS]", *"abcdefghijklmnopqrstu"]
TEXTS = [
    " ".join(NAMES[3 + (number * 5 + step * 3) % 20] for step in range(6)) for number in range(ROWS * UPDATES)
]


def words() -> Any:
    vocabulary = Tokenizer(models.WordLevel({name: number for number, name in enumerate(NAMES)}, "[UNK]"))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, **dict(zip(("pad_token", "unk_token", "eos_token"), NAMES, strict=False))
    )


def encoder() -> Any:
    folder = "/tmp/encoder"  # only rank 0 writes it
    of("BertModel", SMALL)().save_pretrained(folder)
    words().save_pretrained(folder)
    if dist.is_initialized():
        dist.barrier()
    return sentence_transformers.SentenceTransformer(modules=[Encoder(folder), Pooling(16)])


def embeddings(loss: Any, data: dict[str, Any]) -> Any:
    def build(arguments: Any) -> Any:
        model = encoder()
        kind = sentence_transformers.SentenceTransformerTrainer
        return kind(model=model, args=arguments, train_dataset=Dataset.from_dict(data), loss=loss(model))

    return build


def of_trl(kind: Any, data: dict[str, Any], model: Any, **reference: Any) -> Any:
    return lambda arguments: kind(
        model=model(),
        args=arguments,
        train_dataset=Dataset.from_dict(data),
        processing_class=words(),
        **{name: make() for name, make in reference.items()},
    )


PAIRS = {"first": TEXTS, "second": TEXTS[::-1]}
SCORED = {**PAIRS, "score": [number % 4 / 4 for number in range(len(TEXTS))]}
CHOICES = {"prompt": TEXTS, "chosen": [" a b c"] * len(TEXTS), "rejected": [" d e f"] * len(TEXTS)}
REWARDS = {"chosen": TEXTS, "rejected": TEXTS[::-1]}
_far = functools.partial(losses.MultipleNegativesRankingLoss, gather_across_devices=True)
_llama = of("LlamaForCausalLM", DECODER)
_reward = of("LlamaForSequenceClassification", {**DECODER, "num_labels": 1})
WAYS = {
    "embeddings, cosine": Way(
        embeddings(losses.CosineSimilarityLoss, SCORED), config=SentenceTransformerTrainingArguments
    ),
    "embeddings, negatives of all ranks": Way(
        embeddings(_far, PAIRS), config=SentenceTransformerTrainingArguments, accumulates=False
    ),
    "trl, SFT": Way(of_trl(trl.SFTTrainer, {"text": TEXTS}, _llama), config=trl.SFTConfig),
    "trl, SFT of Mixtral": Way(
        of_trl(
            trl.SFTTrainer,
            {"text": [TEXTS[n // ROWS] for n in range(len(TEXTS))]},
            of("MixtralForCausalLM", EXPERTS),
        ),
        config=trl.SFTConfig,
    ),
    "trl, DPO": Way(of_trl(trl.DPOTrainer, CHOICES, _llama, ref_model=_llama), config=trl.DPOConfig),
    "trl, reward": Way(of_trl(trl.RewardTrainer, REWARDS, _reward), config=trl.RewardConfig),
}
