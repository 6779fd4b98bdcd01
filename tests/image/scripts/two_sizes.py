"""Runs inside the image: saves random decoders in bf16, with the tokenizer of a BERT.

One is small, one is large, and one has many words, whose embedding is also the output layer.

Usage: two_sizes.py TINY FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from saved import save_with_tokenizer
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

tiny, folder = Path(sys.argv[1]), Path(sys.argv[2])
words = AutoConfig.from_pretrained(tiny).vocab_size
shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8}
torch.set_default_dtype(torch.bfloat16)
torch.manual_seed(0)
for name, layers, own in (("small", 1, {}), ("large", 9, {}), ("words", 1, {"vocab_size": 60_000})):
    config = LlamaConfig(
        **{"vocab_size": words, **own}, num_hidden_layers=layers, tie_word_embeddings=bool(own), **shape
    )
    save_with_tokenizer(LlamaForCausalLM(config), tiny, folder / name)
