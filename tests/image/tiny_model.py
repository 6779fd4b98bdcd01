"""Runs inside the image: saves a random BERT of two layers and its tokenizer.

Usage: tiny_model.py FOLDER TEXT. Without dropout, so that runs can be compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast


def save(folder: Path, text: str) -> None:
    """The vocabulary is the words of `text` and all letters, so that no input is only unknown words."""
    words = sorted(set(text.lower().split()))
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
        initializer_range=0.2,  # wide enough for one step to show in the loss
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # weights are saved for their owner alone, who is not the tests' user


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
