"""The model that `bench scaling` trains: BERT's layers, MiniLM's widths, BERT-base's share of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYERS = 6
WIDTH = 384
HEADS = 12
INNER = 4 * WIDTH
# Of 13 million parameters a fifth are word embeddings, as in BERT-base: their gradient comes last, in one piece.
WORDS = 7000
LABELS = 2


class SmallEncoder(nn.Module):  # type: ignore[misc]  # torch is untyped on the host
    """Classifies sequences of tokens by their first one's last state. Returns the loss."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Parameter(torch.zeros(length, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        states = self.layers(self.words(tokens) + self.positions)
        return nn.functional.cross_entropy(self.head(states[:, 0]), labels)
