"""Attention of rows that are end to end, compared with the formula of each row in double precision."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import torch
from attention_shapes import joined_lengths
from formula import KEPT, P, derived, expected

from cpu_train_stack.operators import attention


def check_rows(dtype: Any, limit: float) -> None:
    """Each row attends to itself only. `limit`: of the distance, compared with the size."""
    for causal, (number, one) in itertools.product((False, True), enumerate(joined_lengths())):
        features, fewer, p = (8, 80, 64)[number % 3], (1, 2, 4)[number % 3], (0.0, P)[number % 2]
        check_joined(torch.tensor([0, *one]).cumsum(0), causal, features, fewer, p, dtype, limit)


def check_joined(starts: Any, causal: bool, features: int, fewer: int, p: float, dtype: Any, limit: float) -> None:
    """Values and gradients, for four heads that share the keys of `fewer`."""
    tokens = int(starts[-1])
    given = [torch.randn(1, heads, tokens, features).to(dtype).requires_grad_() for heads in (4, fewer, fewer)]
    outer = torch.randn(1, 4, tokens, features).to(dtype)
    torch.manual_seed(4)
    query, key, value = given
    found = derived(attention.joined(query, key, value, starts, causal, 0.2, p), given, outer)
    keeps = kept(tuple(starts.tolist()), p, dtype) if p else None
    wanted = []
    for first, end in itertools.pairwise(starts.tolist()):
        query, key, value = (tensor[:, :, first:end] for tensor in given)
        key, value = (tensor.repeat_interleave(4 // fewer, 1) for tensor in (key, value))
        hidden = torch.full((end - first, end - first), -math.inf).triu(1) if causal else None
        kept_ = torch.ones(1) / KEPT if keeps is None else keeps[:, :, first:end, : end - first]
        wanted.append(expected(query, key, value, hidden, kept_, 0.2))
    exact = derived(torch.cat(wanted, 2), given, outer)
    for one, other in zip(found, exact, strict=True):
        # A row of one token has no gradients of its query and key.
        size = max(float(other.detach().norm()), float(outer.float().norm()))
        distance = float((one.double() - other).detach().norm())
        assert distance < limit * size, (starts.diff()[:9], causal, features, fewer, p, distance / size)


@functools.cache
def kept(starts: tuple[int, ...], p: float, dtype: Any) -> Any:
    """What the seed of check_joined keeps: the weights of a row are the products with a unit matrix."""
    lengths = torch.tensor(starts).diff()
    units = torch.cat([torch.eye(length, int(lengths.max())) for length in lengths.tolist()])[None, None].to(dtype)
    torch.manual_seed(4)
    return attention.joined(0 * units.expand(1, 4, -1, -1), units, units, torch.tensor(starts), False, 1.0, p) != 0


def check_bits(dtype: Any) -> None:
    """The same bits whatever ran before, at other addresses, and with other numbers of threads."""
    lengths = [600, 130, 65, 64, 47, 16, 3, 1]
    starts, threads = torch.tensor([0, *lengths]).cumsum(0), torch.get_num_threads()
    for causal, features, p in ((False, 32, P), (True, 24, 0.0)):
        given = [torch.randn(1, 4, sum(lengths), features).to(dtype) for _ in range(4)]

        def computed(query: Any, key: Any, value: Any, outer: Any, causal: bool = causal, p: float = p) -> Any:
            torch.manual_seed(4)
            inputs = query, key, value
            for tensor in inputs:
                tensor.requires_grad_()
            return derived(attention.joined(query, key, value, starts, causal, 0.2, p), inputs, outer)

        wanted = computed(*map(torch.clone, given))
        for count, gap in ((1, 0), (1, 1), (3, 5), (2, 0)):
            torch.set_num_threads(count)
            computed(*(torch.full_like(tensor, math.nan) for tensor in given))  # the memory that is used again
            found = computed(*(moved(tensor, gap) for tensor in given))
            for one, other in zip(found, wanted, strict=True):
                assert one.isfinite().all()
                assert torch.equal(one, other), (causal, features, count, gap)
        torch.set_num_threads(threads)


def moved(tensor: Any, gap: int) -> Any:
    """A copy whose address is `gap` numbers after one that is aligned."""
    memory = torch.empty(tensor.numel() + gap, dtype=tensor.dtype)[gap:]
    return memory.copy_(tensor.flatten()).view(tensor.shape)
