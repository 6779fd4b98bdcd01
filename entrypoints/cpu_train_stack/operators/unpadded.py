"""Layers without padding: the tokens of all rows end to end in one row.

The attention kernels read such rows (operators.attention). Any other attention gets them padded, in groups of
similar length.

A batch [rows, width] with padding on the right becomes one row [1, tokens], the longest row first, so that
attention computes rows of similar length together. A Layout takes the place of the attention mask as a tensor, so
that layers that activation checkpointing recomputes get it too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from cpu_train_stack.operators import attention as kernels

# Attention that pads rows computes rows together that are at least this share of the longest one.
_SIMILAR = 0.5


@dataclass(frozen=True)
class Layout:
    """Where the tokens of each row are. Rows are sorted by length, the longest first.

    `rows`: the number of each row in the batch, `starts`: its first token, and last the number of all tokens.
    `width`: of the batch.
    """

    rows: Any
    starts: Any
    width: int

    @property
    def lengths(self) -> Any:
        """The number of tokens in each row, int64 [rows]."""
        return self.starts.diff()

    @property
    def mask(self) -> Any:
        """This layout in the shape of an attention mask: int64 [1, 1, width, 2 * rows + 1].

        The same numbers at each position of the width, which takes no memory.
        """
        import torch

        return torch.cat((self.rows, self.starts)).expand(1, 1, self.width, -1)

    def places(self) -> Any:
        """Where each token is in the padded batch: its index among all positions, int64 [tokens]."""
        return (self.rows[:, None] * self.width + _columns(self.width))[real(self.lengths, self.width)]


def layout_of(mask: Any) -> Layout | None:
    """The layout of a batch. `mask`: [rows, width], ones for tokens.

    None unless each row of the mask is ones followed by zeros, with at least one 1.
    """
    import torch

    lengths = (mask != 0).sum(1)
    is_padded_right = torch.equal(mask, real(lengths, mask.shape[1]).to(mask.dtype))
    if not is_padded_right or not bool(lengths.all()):
        return None
    lengths, rows = lengths.sort(descending=True, stable=True)
    return Layout(rows, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), mask.shape[1])


def layout_in(mask: Any) -> Layout | None:
    """The layout in an attention mask that Layout.mask made. torch supports only bool and floating-point masks."""
    import torch

    if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or mask.dtype != torch.int64:
        return None
    count = mask.shape[3] // 2
    return Layout(mask[0, 0, 0, :count], mask[0, 0, 0, count:], mask.shape[2])


def real(lengths: Any, width: int) -> Any:
    """Whether a position holds a token: bool [rows, width]."""
    return _columns(width) < lengths[:, None]


def padded(tokens: Any, layout: Layout) -> Any:
    """[1, tokens, features] as [rows, width, features], with zeros as padding."""
    return _spread(tokens[0], layout.places(), len(layout.rows), layout.width)


def attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of transformers that also accepts a layout as the mask.

    With a layout: query, key and value [1, heads, tokens, features]; returns [1, tokens, heads, features]. The
    kernel for rows end to end computes them, or else `original` in padded groups of similar length.
    """

    @functools.wraps(original)
    def forward(module: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, **options: Any) -> Any:
        layout = layout_in(mask)
        if layout is None:
            return original(module, query, key, value, mask, *args, **options)
        factor = options.get("scaling") or query.shape[-1] ** -0.5
        dropout, causal = options.get("dropout", 0.0), getattr(module, "is_causal", False)
        out = None if args else kernels.joined(query, key, value, layout.starts, causal, factor, dropout)
        if out is not None:
            return out.transpose(1, 2), None
        found, starts = [], layout.starts.tolist()
        for first, end in similar(layout.lengths.tolist()):
            lengths = layout.lengths[first:end]
            is_real = real(lengths, int(lengths.max()))
            tokens = slice(starts[first], starts[end])
            places = is_real.flatten().nonzero()[:, 0]
            together = (
                _spread(tensor[0, :, tokens].transpose(0, 1), places, *is_real.shape).transpose(1, 2)
                for tensor in (query, key, value)
            )
            # A causal token sees no padding, which is on its right.
            mask = None if causal else is_real[:, None, None]
            out, _weights = original(module, *together, mask, *args, **options)
            found.append(out.flatten(0, 1).index_select(0, places))
        import torch

        return torch.cat(found)[None], None

    return forward


def similar(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first row and the end of each group of similar lengths."""
    first, shortest, longest = 0, lengths[0], lengths[0]
    for row, length in enumerate(lengths):
        shortest, longest = min(shortest, length), max(longest, length)
        if shortest < _SIMILAR * longest:
            yield first, row
            first, shortest, longest = row, length, length
    yield first, len(lengths)


def _columns(width: int) -> Any:
    import torch

    return torch.arange(width, device="cpu")


def _spread(tokens: Any, places: Any, rows: int, width: int) -> Any:
    """[tokens, ...] as [rows, width, ...], with zeros elsewhere."""
    zeros = tokens.new_zeros(rows * width, *tokens.shape[1:])
    return zeros.index_copy(0, places, tokens).unflatten(0, (rows, width))
