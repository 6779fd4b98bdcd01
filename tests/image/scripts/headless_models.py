"""Runs inside the image: saves random encoders without a classifier's head, with the tokenizer of a BERT.

Usage: headless_models.py TINY FOLDER. BERT's masked language model has no pooler.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from saved import save_with_tokenizer
from transformers import (
    AutoConfig,
    BartConfig,
    BartModel,
    BertForMaskedLM,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
)

tiny, folder = Path(sys.argv[1]), Path(sys.argv[2])
bert = AutoConfig.from_pretrained(tiny)
words, width = bert.vocab_size, 32
shape = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
layers = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
torch.manual_seed(0)
for name, model in {
    "bert": BertForMaskedLM(bert),
    "deberta": DebertaV2Model(DebertaV2Config(vocab_size=words, pooler_hidden_size=width, **shape)),
    "distilbert": DistilBertModel(
        DistilBertConfig(vocab_size=words, dim=width, n_layers=2, n_heads=2, hidden_dim=64)
    ),
    "bart": BartModel(BartConfig(vocab_size=words, d_model=width, **layers, **special)),
}.items():
    save_with_tokenizer(model, tiny, folder / name)
