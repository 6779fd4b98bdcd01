"""Runs inside the image: saves a random BERT of two layers and its tokenizer.

Usage: tiny_model.py FOLDER, with texts as a JSON list on standard input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast


def save(folder: Path, texts: list[str]) -> None:
    """The vocabulary is the words of `texts` and all letters, so that no text is only unknown words."""
    words = sorted({word for text in texts for word in text.lower().split()})
    letters = [chr(code) for code in range(33, 127)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*special, *words, *letters, *(f"##{letter}" for letter in letters)])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)


if __name__ == "__main__":
    save(Path(sys.argv[1]), json.load(sys.stdin))
