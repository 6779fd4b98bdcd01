"""Checks of attention with tiles: bit for bit as with a model of the instructions. Where Linux permits AMX.

    run attention_tiles.py LIBRARY

LIBRARY: the kernels with the model, kernels/amx_model.hpp. Prints each check with its number of cases.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from attention_shapes import CAUSAL, ONE_KEY, SIZES, biases, joined_lengths
from formula import P, tensors

from cpu_train_stack.operators import attention, attention_bf16, attention_mask, library
from cpu_train_stack.operators.dropout import Rule, draw_rule

BF = torch.bfloat16


def loaded() -> tuple[Any, Any]:
    """The image's kernels, and those with the model."""
    ours = library.library()
    library.library.cache_clear()
    library.LIBRARY = Path(sys.argv[1])
    return ours, library.library()


LIBRARIES = loaded()


def have_the_same_bits(given: Any, mask: Any, causal: bool, factor: float, rule: Rule, starts: Any = None) -> None:
    """The result, what each softmax keeps, and the gradients. For the arguments, see attention_bf16.attention."""
    query, key, value = given
    outer = torch.randn(query.shape).to(BF)
    results = []
    for each in LIBRARIES:
        with mock.patch.object(library, "library", return_value=each):
            out = attention_bf16.attention(query, key, value, mask, causal, factor, rule, starts, amx=True)
            softmax = out.grad_fn.saved_tensors[-1]
            results.append((out, softmax, *torch.autograd.grad(out, given, outer)))
    for name, one, other in zip(("out", "softmax", "query", "key", "value"), *results, strict=True):
        # Instructions differ in which NaN they return.
        same = (one == other) & (one.signbit() == other.signbit()) | one.isnan() & other.isnan()
        assert same.all(), (name, [tensor.shape for tensor in given], causal, rule, float(same.float().mean()))


def rules() -> tuple[Rule, ...]:
    drawn = draw_rule(P)
    assert drawn is not None
    return attention.NO_DROPOUT, drawn


def every_length_and_mask() -> int:
    count = 0
    for queries, keys, features in SIZES:
        for mask, _ in biases(queries, keys).values():
            readable = attention_mask.readable(mask, keys)
            for rule in rules():
                have_the_same_bits(tensors(queries, keys, BF, features), readable, False, 0.2, rule)
                count += 1
    return count


def causal_and_shared_keys() -> int:
    count = 0
    for (queries, keys), fewer in itertools.product(CAUSAL, (3, 1)):
        for rule in rules():
            have_the_same_bits(tensors(queries, keys, BF, 64, fewer), None, True, 0.125, rule)
            count += 1
    return count


def any_numbers() -> int:
    """Any bits, also infinite numbers, NaN, and sums that overflow; denormal products; denormal factors."""
    count = 0
    for (queries, features), keys in itertools.product(ONE_KEY, (1, 40)):
        shapes = (2, 3, queries, features), (2, 3, keys, features)
        for first, second in (
            [torch.randint(-(2**15), 2**15, shape, dtype=torch.int16).view(BF) for shape in shapes],
            [(torch.randn(shape) * 2.0**-63).to(BF) for shape in shapes],
            [(torch.randn(shapes[0]) * 2.0**-127).to(BF), (torch.randn(shapes[1]) * 2.0**110).to(BF)],
        ):
            given = [tensor.clone().requires_grad_() for tensor in (first, second, second)]
            have_the_same_bits(given, None, False, 1.0, attention.NO_DROPOUT)
            count += 1
    return count


def joined_rows() -> int:
    """Rows that are end to end (cu_seqlens)."""
    count = 0
    for number, lengths in enumerate(joined_lengths()):
        starts = torch.tensor([0, *lengths]).cumsum(0)
        features, fewer = ((8, 1), (80, 2), (64, 4))[number % 3]
        for causal, rule in itertools.product((False, True), rules()):
            shapes = ((1, heads, int(starts[-1]), features) for heads in (4, fewer, fewer))
            given = [torch.randn(shape).to(BF).requires_grad_() for shape in shapes]
            have_the_same_bits(given, None, causal, 0.2, rule, starts)
            count += 1
    return count


assert attention_bf16.amx_permitted(), "Linux does not permit AMX"
for check in (every_length_and_mask, causal_and_shared_keys, any_numbers, joined_rows):
    torch.manual_seed(7)
    print(check.__name__, check(), flush=True)
