"""Checks of attention with dropout against the operators that it stands for. A line for each that held."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from formula import (
    KEPT,
    OURS,
    P,
    check_hidden_rows_and_nan,
    check_math_backend,
    check_nan_behind_a_mask,
    check_refusals,
    expected,
    kept,
    tensors,
)
from joined_rows import check_bits, check_rows
from torch.autograd import forward_ad

from cpu_train_stack.operators import attention

BF = torch.bfloat16


def close(found: Any, wanted: Any, tolerance: float) -> None:
    """Fails unless they are as near as their type allows."""
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def values_and_gradients_are_those_of_the_formula() -> None:
    """Lengths around the widths of vectors and blocks; masks of every kind."""
    for queries, keys in itertools.product((1, 5), (1, 15, 16, 17, 63, 64, 65, 130, 384)):
        hidden = torch.rand(2, 1, 1, keys) < 0.3
        hidden[..., 0] = False
        biases = (
            None,
            torch.zeros(2, 1, 1, keys).masked_fill_(hidden, torch.finfo(torch.float32).min),
            ~hidden,
            (~hidden).expand(2, 3, queries, keys),
            torch.randn(2, 3, queries, keys),
            torch.randn(2, 3, keys, queries).transpose(2, 3),
            torch.randn(1, 3, 1, keys),
            torch.randn(2, 1, queries, 1),
        )
        for seed, bias in enumerate(biases):
            given = tensors(queries, keys)
            keeps = kept(queries, keys, seed)
            torch.manual_seed(seed)
            found = OURS(*given, attn_mask=bias, dropout_p=P, scale=0.7)
            boolean = bias is not None and bias.dtype is torch.bool
            added = torch.zeros(bias.shape).masked_fill_(~bias, -math.inf) if boolean else bias
            wanted = expected(*given, bias=added, keeps=keeps, factor=0.7)
            close(found, wanted, 1e-5)
            outer = torch.randn_like(found)
            gradients = (
                torch.autograd.grad(found, given, outer),
                torch.autograd.grad(wanted, given, outer.double()),
            )
            for one, other in zip(*gradients, strict=True):
                close(one, other, 2e-5)


def a_causal_mask_hides_what_comes() -> None:
    given = tensors(40, 40)
    keeps = kept(40, 40, 3)
    torch.manual_seed(3)
    found = OURS(*given, dropout_p=P, is_causal=True)
    hidden = torch.full((40, 40), -math.inf).triu(1)
    close(found, expected(*given, bias=hidden, keeps=keeps, factor=8**-0.5), 1e-5)


def rows_end_to_end_are_those_of_the_formula() -> None:
    check_rows(torch.float32, 2e-6)


def rows_end_to_end_have_the_same_bits_in_every_process() -> None:
    check_bits(torch.float32)


def rows_without_keys_are_zero_and_nan_stays() -> None:
    check_hidden_rows_and_nan(torch.float32)
    check_nan_behind_a_mask(torch.float32)


def no_two_places_share_their_numbers() -> None:
    """64 neighbours are alike by chance in one of 10^13 pairs: rows, heads and calls are all apart."""
    parts = [kept(200, 192, seed).reshape(-1, 64) for seed in (1, 2)]
    both = torch.cat(parts)
    assert len(torch.unique(both, dim=0)) == len(both) == 2 * 2 * 3 * 200 * 3
    assert abs(float(both.mean()) - 1 / KEPT) < 6 * math.sqrt(P * (1 - P) / both.numel())


def narrow_types_are_computed_wide_and_rounded_once() -> None:
    """Where the CPU has no instructions for bfloat16: both ways to get there."""
    given = tensors(33, 70, BF)
    wide = [tensor.detach().float().requires_grad_() for tensor in given]
    results = []
    for arguments, autocast in ((given, False), (wide, True), (wide, False)):
        torch.manual_seed(5)
        with torch.autocast("cpu", BF, enabled=autocast):
            results.append(OURS(*arguments, dropout_p=P))
    assert [result.dtype for result in results] == [BF, BF, torch.float32]
    assert torch.equal(results[0], results[2].to(BF))
    assert torch.equal(results[1], results[2].to(BF))
    results[0].float().sum().backward()
    assert all(tensor.grad.dtype is BF for tensor in given)


def what_is_not_ours_is_torchs() -> None:
    """Without dropout, with other types, shapes and layouts, with tangents, and errors."""
    torch.manual_seed(0)
    given = tensors(6, 6)
    plain = (torch.randn(6, 8) for _ in range(3))
    assert OURS(*plain, dropout_p=P).shape == (6, 8)
    assert OURS(*(tensor.double() for tensor in given), dropout_p=P).dtype is torch.float64
    few = torch.randn(2, 1, 6, 8)
    assert OURS(given[0], few, few, dropout_p=P, enable_gqa=True).shape == given[0].shape
    nested = torch.nested.nested_tensor([torch.randn(3, size, 8) for size in (5, 6)])
    for p in (0.0, P):
        assert OURS(nested, nested, nested, dropout_p=p).is_nested
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(tensor, torch.ones_like(tensor)) for tensor in given]
        assert forward_ad.unpack_dual(OURS(*duals, dropout_p=P)).tangent.any()
    bias = torch.zeros(6, 6, requires_grad=True)
    OURS(*given, attn_mask=bias, dropout_p=P).sum().backward()
    assert bias.grad is not None
    try:
        OURS(*given, attn_mask=torch.zeros(2, 3, 5, 6), dropout_p=P)
    except RuntimeError:
        return
    raise AssertionError("a mask of another shape was taken")


def what_torch_refuses_is_refused() -> None:
    check_refusals(torch.float32)


def torchs_own_operators_can_be_chosen() -> None:
    check_math_backend(torch.float32)


def threads_change_nothing() -> None:
    given, before, results = tensors(50, 90), torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        found = OURS(*given, dropout_p=P)
        results.append((found, *torch.autograd.grad(found.sum(), given)))
    torch.set_num_threads(before)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


assert OURS.__module__ == attention.__name__


def a_backward_pass_may_be_under_autocast() -> None:
    given, results = tensors(5, 17), []
    for autocast in (False, True):
        torch.manual_seed(1)
        found = OURS(*given, dropout_p=P)
        with torch.autocast("cpu", BF, enabled=autocast):
            results.append(torch.autograd.grad(found, given, torch.ones_like(found)))
    assert all(map(torch.equal, *results))


for check in (
    values_and_gradients_are_those_of_the_formula,
    a_causal_mask_hides_what_comes,
    rows_end_to_end_are_those_of_the_formula,
    rows_end_to_end_have_the_same_bits_in_every_process,
    rows_without_keys_are_zero_and_nan_stays,
    no_two_places_share_their_numbers,
    narrow_types_are_computed_wide_and_rounded_once,
    what_is_not_ours_is_torchs,
    what_torch_refuses_is_refused,
    torchs_own_operators_can_be_chosen,
    threads_change_nothing,
    a_backward_pass_may_be_under_autocast,
):
    torch.manual_seed(7)
    check()
    print(check.__name__)
