"""Runs inside the image: saves a Llama and a multimodal Gemma whose configurations have no padding token.

Usage: decoders_without_padding.py TINY FOLDER. Their tokenizer, that of a BERT, has one, and pads to the right.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from saved import save_with_tokenizer
from transformers import (
    AutoConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
)

tiny, folder = Path(sys.argv[1]), Path(sys.argv[2])
shape = {
    "vocab_size": AutoConfig.from_pretrained(tiny).vocab_size,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.2,
}
vision = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
gemma = Gemma3Config(
    text_config={**shape, "head_dim": 8, "sliding_window": 16}, vision_config=vision, mm_tokens_per_image=4
)
torch.manual_seed(0)
for name, model in {
    "llama": LlamaForCausalLM(LlamaConfig(**shape)),
    "gemma": Gemma3ForConditionalGeneration(gemma),
}.items():
    save_with_tokenizer(model, tiny, folder / name)
