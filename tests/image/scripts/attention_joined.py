"""Checks of attention of rows that are end to end, by bf16 instructions: against the formula of each row."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from formula import KEPT, P, expected

from entrypoints.operators import attention

BF = torch.bfloat16
# As in attention_bf16.py.
ROUNDED = 2**-7


def values_and_gradients_are_those_of_the_formula() -> None:
    """Each row attends to itself only. Rows without tokens, of one token, and longer than a tile of keys."""
    random = torch.Generator().manual_seed(1)
    lengths = [
        *([length] for length in (1, 15, 48, 65, 130, 600, 1100)),
        [1] * 1000,
        [0, 3, 0, 0, 64, 1, 0],
        [1025, 1024, 2, 513],  # the shorter row has the larger blocks
        *(torch.randint(1, 90, (9,), generator=random).tolist() for _ in range(4)),
    ]
    for causal, (number, one) in itertools.product((False, True), enumerate(lengths)):
        features, fewer, p = (8, 80, 64)[number % 3], (1, 2, 4)[number % 3], (0.0, P)[number % 2]
        check_joined(torch.tensor([0, *one]).cumsum(0), causal, features, fewer, p)


def rows_drop_different_elements() -> None:
    units = torch.eye(64).repeat(2, 1)[None, None].to(BF)
    kept_ = attention.joined(0 * units, units, units, torch.tensor([0, 64, 128]), False, 1.0, P) != 0
    assert not torch.equal(kept_[:, :, :64], kept_[:, :, 64:])
    assert abs(float(kept_.float().mean()) - (1 - P)) < 0.02


def check_joined(starts: Any, causal: bool, features: int, fewer: int, p: float) -> None:
    """Values and gradients, for four heads that share the keys of `fewer`."""
    tokens, longest = int(starts[-1]), int(starts.diff().max())
    given = [torch.randn(1, heads, tokens, features).to(BF).requires_grad_() for heads in (4, fewer, fewer)]
    outer = torch.randn(1, 4, tokens, features).to(BF)
    torch.manual_seed(4)
    query, key, value = given
    found = derived(attention.joined(query, key, value, starts, causal, 0.2, p), given, outer)
    keeps = None
    if p:  # the weights of a row are the products with a unit matrix
        units = torch.cat([torch.eye(length, longest) for length in starts.diff().tolist()])[None, None].to(BF)
        torch.manual_seed(4)
        keeps = attention.joined(0 * units.expand(1, 4, -1, -1), units, units, starts, False, 1.0, p) != 0
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
        assert distance < ROUNDED * size, (starts.diff()[:9], causal, features, fewer, p, distance / size)


def derived(found: Any, given: Any, outer: Any) -> Any:
    """The result and its derivatives."""
    return (found, *torch.autograd.grad(found, given, outer.to(found.dtype)))


for check in (values_and_gradients_are_those_of_the_formula, rows_drop_different_elements):
    torch.manual_seed(7)
    check()
    print(check.__name__)
