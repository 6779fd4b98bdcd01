"""The gradient of a word embedding, exchanged as the rows that a step has words for, not as the whole table.

A batch of 32 x 128 tokens has one or two thousand of BERT-base's 30,522 rows and hardly more of XLM-R's 250,002,
and the table is 21% of the one and 69% of the other. Its gradient is the last that a backward pass makes: nothing
hides its exchange. The optimizer gets the same dense gradient: every rank adds up the rows of all, in their order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

# Tables of fewer numbers are exchanged whole.
_LARGE = 1 << 20
# A rank's row count if it needs the complete table exchanged.
_WHOLE = -1


def table(model: torch.nn.Module) -> torch.nn.Embedding | None:
    """The largest table of `model` that only words look up, None if there is none. A table that the output layer
    shares has a gradient in every row."""
    uses = Counter(id(each) for module in model.modules() for each in module.parameters(recurse=False))
    found = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
        and module.weight.requires_grad
        and uses[id(module.weight)] == 1
        and module.weight.numel() >= _LARGE
        and not module.sparse
        and module.max_norm is None
    ]
    return max(found, key=lambda module: module.weight.numel(), default=None)


class Rows:
    """The rows of a table that the words since the last exchange belong to. All ranks have to use it alike."""

    def __init__(self, of: torch.nn.Embedding) -> None:
        self._weight = of.weight
        self._words: list[torch.Tensor] = []
        of.register_forward_pre_hook(self._remember)

    def _remember(self, _: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and inputs:
            self._words.append(inputs[0].detach().reshape(-1).unique())

    def reduce(self, bucket: dist.GradBucket, wire: torch.dtype | None) -> bool:
        """Puts the ranks' mean in the place of the gradients of the bucket that has the table's. A collective.

        Returns False on every rank, and leaves them as they are, for another bucket, and where there are too many
        rows or others than the words'. Everything travels as `wire`, or else as it is.
        """
        parameters = bucket.parameters()
        place = next((place for place, each in enumerate(parameters) if each is self._weight), None)
        if place is None:
            return False
        gradient, whole = bucket.gradients()[place], bucket.buffer()
        ranks = dist.get_world_size()
        words = torch.cat([torch.empty(0, dtype=torch.long), *self._words]).unique()
        self._words.clear()
        taken = _take(gradient, words) if len(words) * ranks <= gradient.shape[0] else None
        counts = [int(each) for each in _gather(torch.tensor([_WHOLE if taken is None else len(words)]))]
        if taken is None:
            return False
        if min(counts) == _WHOLE:  # another rank needs the complete table
            gradient.index_copy_(0, words, taken)
            return False
        longest = max(counts)
        start = (gradient.data_ptr() - whole.data_ptr()) // whole.element_size()
        beside = [part for part in (whole[:start], whole[start + gradient.numel() :]) if part.numel()]
        means = [part.to(wire or part.dtype).div_(ranks) for part in beside]
        sums = [dist.all_reduce(mean, async_op=True) for mean in means]
        if longest:
            mine = gradient.new_zeros(longest, gradient.shape[1], dtype=wire or gradient.dtype)
            mine[: len(words)] = taken.div_(ranks)
            named = words.new_zeros(longest)
            named[: len(words)] = words
            for count, names, rows in zip(counts, _gather(named), _gather(mine)):
                gradient.index_add_(0, names[:count], rows[:count].to(gradient.dtype))
        for part, mean, work in zip(beside, means, sums):
            work.wait()
            part.copy_(mean)  # which is the part itself where nothing was narrowed
        return True


def _take(gradient: torch.Tensor, words: torch.Tensor) -> torch.Tensor | None:
    """The rows of `words`, zeroed in `gradient`. None, without a change, if any other row is not zero.

    Checked in every step: a row left out of the exchange would make the ranks' weights diverge for good. The check
    reads the table once, between the backward pass, which writes it, and the optimizer, which reads it.
    """
    rows = gradient[words]
    gradient.index_fill_(0, words, 0)
    low, high = torch.aminmax(gradient)  # NaN is not 0 either
    if low != 0 or high != 0:
        gradient.index_copy_(0, words, rows)
        return None
    return rows


def _gather(mine: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's tensor, which all have the same shape."""
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return found
