"""The shapes for which the checks of attention in bfloat16 compute it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

# Queries, keys, features: lengths around the widths of vectors, tiles and blocks; features that fill none.
SIZES = (
    *itertools.product((1, 2, 47, 49), (15, 16, 17, 65), (8, 80)),
    (97, 384, 64),
    (130, 600, 40),
    (50, 1100, 32),
    (7, 2100, 128),
)
CAUSAL = ((40, 40), (130, 130), (1100, 1100), (1100, 40), (40, 1100))
# Queries and features, for one key.
ONE_KEY = tuple(itertools.product((1, 15, 16, 33, 64, 130), (8, 16, 32, 40, 64, 80, 128)))


def biases(queries: int, keys: int) -> dict[str, Any]:
    """Masks of every kind, and what is added for each."""
    hidden = torch.rand(2, 1, 1, keys) < 0.3
    hidden[..., 0] = False
    negative = torch.zeros(2, 1, 1, keys).masked_fill_(hidden, -math.inf)
    whole, heads = torch.randn(2, 3, queries, keys), torch.randn(1, 3, 1, keys)
    every = {
        "none": (None, None),
        "boolean": (~hidden, negative),
        "expanded": ((~hidden).expand(2, 3, queries, keys), negative),
        "whole": (whole, whole),
        "narrow": (whole.bfloat16(), whole.bfloat16().float()),
        "columns": (whole.bfloat16().mT.contiguous().mT, whole.bfloat16().float()),
        "heads": (heads, heads),
    }
    return {name: every[name] for name in (("none", "boolean", "narrow") if keys > 1024 else every)}


def joined_lengths() -> list[list[int]]:
    """Rows without tokens, of one token, and longer than a tile of keys."""
    random = torch.Generator().manual_seed(1)
    return [
        *([length] for length in (1, 15, 48, 65, 130)),
        [1025, 1024, 2],  # the shorter row has the larger blocks
        [0, 3, 0, 0, 64, 1, 0],
        [1] * 100,
        *(torch.randint(1, 90, (9,), generator=random).tolist() for _ in range(4)),
    ]
