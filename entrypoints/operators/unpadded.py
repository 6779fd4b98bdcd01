"""Layers without padding: the tokens of all rows end to end in one row, padded only inside attention.

A batch [rows, width] with padding on the right becomes one row [1, tokens]. The starts of the rows take the place
of the attention mask, so that layers that activation checkpointing recomputes get them too: int64
[1, 1, width, rows + 1], the same numbers at each position of the width, which takes no memory. The last number is
the number of tokens.
"""

from __future__ import annotations

import functools
from typing import Any, Callable


def lengths_of(mask: Any) -> Any:
    """The number of tokens in each row, int64 [rows]. `mask`: [rows, width].

    None unless each row of the mask is ones followed by zeros, with at least one 1.
    """
    import torch

    lengths = (mask != 0).sum(1)
    is_padded_right = torch.equal(mask, real(lengths, mask.shape[1]).to(mask.dtype))
    return lengths if is_padded_right and bool(lengths.all()) else None


def real(lengths: Any, width: int) -> Any:
    """Whether a position holds a token: bool [rows, width]."""
    import torch

    return torch.arange(width) < lengths[:, None]


def mask_of(lengths: Any, width: int) -> Any:
    """The starts of the rows, in the shape of an attention mask."""
    import torch

    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return starts.expand(1, 1, width, -1)


def is_starts(mask: Any) -> bool:
    """Whether `mask` comes from mask_of. torch supports only bool and floating-point masks."""
    import torch

    return isinstance(mask, torch.Tensor) and mask.dim() == 4 and mask.dtype == torch.int64


def padded(tokens: Any, mask: Any) -> Any:
    """[1, tokens, features] as [rows, width, features], with zeros as padding. `mask`: from mask_of."""
    width = mask.shape[2]
    return _spread(tokens[0], _places(real(mask[0, 0, 0].diff(), width)), mask.shape[3] - 1, width)


def attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of transformers that also accepts the starts of rows as the mask.

    With starts: query, key and value are [1, heads, tokens, features], the result is [1, tokens, heads, features].
    """

    @functools.wraps(original)
    def forward(module: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, **options: Any) -> Any:
        if not is_starts(mask):
            return original(module, query, key, value, mask, *args, **options)
        lengths = mask[0, 0, 0].diff()
        longest = int(lengths.max())
        is_real = real(lengths, longest)
        places = _places(is_real)
        spread = (
            _spread(tensor[0].transpose(0, 1), places, len(lengths), longest).transpose(1, 2)
            for tensor in (query, key, value)
        )
        out, weights = original(module, *spread, is_real[:, None, None], *args, **options)
        return out.flatten(0, 1).index_select(0, places)[None], weights

    return forward


def _places(is_real: Any) -> Any:
    """Where each token is among the positions of all rows: int64 [tokens]."""
    return is_real.flatten().nonzero()[:, 0]


def _spread(tokens: Any, places: Any, rows: int, width: int) -> Any:
    """[tokens, ...] as [rows, width, ...], with zeros elsewhere."""
    zeros = tokens.new_zeros(rows * width, *tokens.shape[1:])
    return zeros.index_copy(0, places, tokens).unflatten(0, (rows, width))
