"""Runs inside the image: saves a small and a large random decoder in bf16, with the tokenizer of a BERT.

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
for name, layers in {"small": 1, "large": 9}.items():
    config = LlamaConfig(vocab_size=words, num_hidden_layers=layers, **shape)
    save_with_tokenizer(LlamaForCausalLM(config), tiny, folder / name)
