"""Checks of attention by bf16 instructions: against its formula, and against torch's own fused kernel."""

from __future__ import annotations

import itertools
import math
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attention_shapes import CAUSAL, ONE_KEY, SIZES, biases
from formula import (
    KEPT,
    OURS,
    P,
    check_hidden_rows_and_nan,
    check_math_backend,
    check_nan_behind_a_mask,
    check_refusals,
    derived,
    expected,
    kept,
    tensors,
)
from torch.utils.checkpoint import checkpoint

from cpu_train_stack.machine import cpus
from cpu_train_stack.operators import attention, attention_bf16

BF = torch.bfloat16
# Whether products are computed with AMX, or with AVX512-BF16.
AMX = cpus.bf16_of(os.environ) == "amx_bf16" and attention_bf16.amx_permitted()
TORCHS = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# bfloat16 has eight bits: a value rounded once is off by 2^-9 of itself at most. A gradient is made of differences
# of such values.
ROUNDED = 2**-7


def error(found: Any, wanted: Any) -> float:
    """The norm of the difference, as a share of what is wanted."""
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def values_and_gradients_are_those_of_the_formula() -> None:
    """With masks of every kind."""
    for queries, keys, features in SIZES:
        for seed, (name, (mask, bias)) in enumerate(biases(queries, keys).items()):
            given = tensors(queries, keys, BF, features)
            keeps = kept(queries, keys, seed)
            outer = torch.randn(2, 3, queries, features).to(BF)
            torch.manual_seed(seed)
            found = derived(OURS(*given, attn_mask=mask, dropout_p=P, scale=0.2), given, outer)
            wanted = derived(expected(*given, bias=bias, keeps=keeps, factor=0.2), given, outer)
            errors = [error(one, other) for one, other in zip(found, wanted, strict=True)]
            assert max(errors) < ROUNDED, (queries, keys, features, name, errors)


def without_dropout_it_is_as_near_as_torchs_kernel() -> None:
    """Also where it is causal, and where heads share keys."""
    for causal, fewer in itertools.product((False, True), (3, 1)):
        given = tensors(130, 130, BF, 64, fewer)
        outer = torch.randn(2, 3, 130, 64).to(BF)
        before = torch.random.get_rng_state()
        query, key, value = given
        ours = attention_bf16.attention(query, key, value, None, causal, 0.125, attention.NO_DROPOUT, amx=AMX)
        found = derived(ours, given, outer)
        assert torch.equal(before, torch.random.get_rng_state())
        repeated = [given[0], *(tensor.repeat_interleave(3 // fewer, 1) for tensor in given[1:])]
        torchs = derived(TORCHS(*repeated, is_causal=causal, scale=0.125)[0], given, outer)
        hidden = torch.full((130, 130), -math.inf).triu(1) if causal else None
        scores = repeated[0].double() @ repeated[1].double().transpose(2, 3) * 0.125
        weights = (scores if hidden is None else scores + hidden).softmax(-1)
        wanted = derived(weights @ repeated[2].double(), given, outer)
        for one, other, exact in zip(found, torchs, wanted, strict=True):
            assert error(one, exact) < 1.1 * error(other, exact), (causal, fewer)


def products_are_those_of_the_instruction() -> None:
    """Bit for bit. With one key, the highest score is the product."""
    for queries, features in ONE_KEY:
        query = torch.randn(2, 3, queries, features).to(BF).requires_grad_()
        key = torch.randn(2, 3, 1, features).to(BF)
        found = attention_bf16.attention(query, key, key, None, False, 1.0, attention.NO_DROPOUT, amx=AMX)
        highest = found.grad_fn.saved_tensors[-1][..., 0]
        products = query.detach().float() * key.float()  # exact
        assert torch.equal(highest, (sum_by_amx if AMX else sum_by_avx512)(products)), (queries, features)


def sum_by_amx(products: Any) -> Any:
    """TDPBF16PS, of 32 numbers at a time: the even ones and the odd ones, each in order, then both."""
    found = torch.zeros(products.shape[:-1])
    for part in products.split(32, dim=-1):
        even, odd = torch.zeros(2, *found.shape)
        for first, second in zip(part.unbind(-1)[::2], part.unbind(-1)[1::2], strict=True):
            even, odd = even + first, odd + second
        found = found + (even + odd)
    return found


def sum_by_avx512(products: Any) -> Any:
    """VDPBF16PS, of two numbers at a time: the second, then the first."""
    found = torch.zeros(products.shape[:-1])
    for first, second in zip(products.unbind(-1)[::2], products.unbind(-1)[1::2], strict=True):
        found = found + second + first
    return found


def queries_of_lowest_scores_attend_to_all_keys_alike() -> None:
    """As in float32, where a score is lost beside the lowest number."""
    for keys, p, dtype in itertools.product((16, 1100), (0.0, P), (BF, torch.float32)):
        given, outer = tensors(16, keys, BF), torch.randn(2, 3, 16, 8).to(BF)
        mask = torch.zeros(1, 1, 16, keys, dtype=dtype)
        mask[:, :, 3] = torch.finfo(dtype).min
        mask[:, :, 5] = 3000
        keeps = kept(16, keys, 1) * KEPT if p else 1.0
        torch.manual_seed(1)
        found = derived(OURS(*given, attn_mask=mask, dropout_p=p), given, outer)
        query, key, value = (tensor.float() for tensor in given)
        scores = query @ key.transpose(2, 3) * 8**-0.5 + mask
        wanted = derived((scores.softmax(-1) * keeps) @ value, given, outer)
        errors = [error(one, other) for one, other in zip(found, wanted, strict=True)]
        errors += [error(one[:, :, 3], other[:, :, 3]) for one, other in zip(found[:2], wanted[:2], strict=True)]
        assert max(errors) < ROUNDED, (keys, p, dtype, errors)


def saturated_gradients_are_as_exact_as_torchs_operators() -> None:
    """Which are computed in float32, and rounded at the end. With a mean that the values share, too."""
    for keys, shift, scale in itertools.product((65, 1100), (0.0, 4.0), (0.125, 1.0, 3.0, 10.0, 1000.0)):
        given, outer = tensors(64, keys, BF, 32), torch.randn(2, 3, 64, 32).to(BF)
        with torch.no_grad():
            given[2].add_(shift)
        keeps = kept(64, keys, 1)
        torch.manual_seed(1)
        found = derived(OURS(*given, dropout_p=P, scale=scale), given, outer)
        results = []
        for dtype in (torch.float32, torch.float64):
            wide = [tensor.detach().to(dtype).requires_grad_() for tensor in given]
            weights = (wide[0] @ wide[1].transpose(2, 3) * scale).softmax(-1) * keeps.to(dtype) * KEPT
            results.append(derived(weights @ wide[2], wide, outer))
        # Of several tiles, the sum has the rounded weights of the forward pass.
        factor = 4 if keys > 1024 else 2
        for one, other, exact in zip(found, *results, strict=True):
            bound = factor * error(other.to(BF), exact)
            assert error(one, exact) < bound, (keys, shift, scale, error(one, exact), bound)


def outputs_can_be_changed_in_place() -> None:
    for p, starts in ((0.0, None), (P, None), (P, torch.tensor([0, 9, 16]))):
        given = tensors(16, 16, BF) if starts is None else [tensor[:1] for tensor in tensors(16, 16, BF)]
        results = []
        for in_place in (False, True):
            torch.manual_seed(1)
            query, key, value = given
            found = OURS(query, key, value, dropout_p=p)
            if starts is not None:
                found = attention.joined(query, key, value, starts, False, 0.3, p)
            assert found._base is None
            results.append(derived(found.add_(1) if in_place else found + 1, given, torch.ones_like(found)))
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def a_causal_mask_hides_what_comes() -> None:
    for queries, keys in CAUSAL:
        given, keeps = tensors(queries, keys, BF), kept(queries, keys, 3)
        outer = torch.randn(2, 3, queries, 8).to(BF)
        torch.manual_seed(3)
        found = derived(OURS(*given, dropout_p=P, is_causal=True), given, outer)
        hidden = torch.full((queries, keys), -math.inf).triu(1)
        wanted = derived(expected(*given, bias=hidden, keeps=keeps, factor=8**-0.5), given, outer)
        for one, other in zip(found, wanted, strict=True):
            assert error(one, other) < ROUNDED, (queries, keys)


def masks_are_read_and_not_copied() -> None:
    for mask in (torch.rand(2, 1, 50, 90) < 0.7, torch.randn(2, 1, 50, 90).to(BF)):
        saved: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(partial(keep, saved), lambda same: same):
            OURS(*tensors(50, 90, BF), attn_mask=mask, dropout_p=P)
        large = [tensor for tensor in saved if tensor.shape[-2:] == (50, 90)]
        assert [tensor.data_ptr() for tensor in large] == [mask.data_ptr()]


def keep(saved: list[Any], tensor: Any) -> Any:
    """Add the tensor to those that a backward pass keeps."""
    saved.append(tensor)
    return tensor


@contextmanager
def memory_left(size: int) -> Iterator[None]:
    """As if so many bytes were left on this machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def without_memory_it_raises_and_names_the_size() -> None:
    """First of all: what was freed before could be used again."""
    for shape, in_backward in (((1, 1, 2**20, 16), False), ((1, 1, 1024, 8192), True)):
        query, key = torch.ones(1, 1, 1, shape[3], dtype=BF).requires_grad_(), torch.ones(shape, dtype=BF)
        found = OURS(query, key, key, dropout_p=P) if in_backward else None
        message = ""
        try:
            with memory_left(2**26):
                found.sum().backward() if found is not None else OURS(query, key, key, dropout_p=P)
        except RuntimeError as error:
            message = str(error)
        assert re.search(r"out of memory. It needs [\d,]{10,} bytes for each of \d+ threads", message), message


def memory_of_backward_does_not_grow_with_keys() -> None:
    """128 Ki keys, whose gradients are 32 MiB. All at once were 160 MiB for each thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    query, key, value = (torch.ones(1, 1, size, 64, dtype=BF).requires_grad_() for size in (1, 2**17, 2**17))
    found = OURS(query, key, value, dropout_p=P)
    with memory_left(2**26):
        found.sum().backward()
    torch.set_num_threads(before)


def rows_without_keys_are_zero_and_nan_stays() -> None:
    check_hidden_rows_and_nan(BF)
    check_nan_behind_a_mask(BF)


def it_is_the_same_from_every_layout_and_under_autocast() -> None:
    given = tensors(33, 70, BF, 64)
    apart = [tensor.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for tensor in given]
    scattered = [tensor.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for tensor in given]
    wide = [tensor.detach().float().requires_grad_() for tensor in given]
    results = []
    for arguments, autocast in ((given, False), (apart, False), (scattered, False), (wide, True)):
        torch.manual_seed(5)
        with torch.autocast("cpu", BF, enabled=autocast):
            found = OURS(*arguments, dropout_p=P)
        assert found.dtype is BF
        results.append([found, *torch.autograd.grad(found.float().square().sum(), arguments)])
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            assert torch.equal(one, other.to(BF))


def recomputed_activations_drop_the_same() -> None:
    given = tensors(50, 50, BF)
    results = []
    for recompute in (False, True):
        torch.manual_seed(2)
        options = {"dropout_p": P}
        found = checkpoint(OURS, *given, use_reentrant=False, **options) if recompute else OURS(*given, **options)
        results.append(derived(found, given, torch.ones_like(found)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def what_torch_refuses_is_refused() -> None:
    check_refusals(BF)


def torchs_own_operators_can_be_chosen() -> None:
    check_math_backend(BF)


def threads_change_nothing() -> None:
    given, before, results = tensors(50, 90, BF), torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        results.append(derived(OURS(*given, dropout_p=P), given, torch.ones(2, 3, 50, 8)))
    torch.set_num_threads(before)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def what_is_not_ours_is_torchs() -> None:
    """Without a head for each thread, few queries, and other shapes."""
    given = tensors(8, 8, BF)
    one_head, few = [tensor[:1, :1] for tensor in given], [given[0][:, :, :7], *given[1:]]
    names = []
    for tensors_, gradients in ((given, True), (given, False), (one_head, True), (few, True), (few, False)):
        torch.set_num_threads(2)
        with torch.set_grad_enabled(gradients), torch.profiler.profile() as profile:
            OURS(*tensors_)
        names.append("FusedAttention" in {event.name for event in profile.events()})
    assert names == [True, True, False, False, False]
    uneven = given[0], given[1], torch.randn(2, 3, 8, 16).to(BF)
    assert OURS(*uneven, dropout_p=P).shape == (2, 3, 8, 16)


assert OURS.__module__ == attention.__name__
assert AMX or os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16", "Linux does not permit AMX"
for check in (
    without_memory_it_raises_and_names_the_size,
    memory_of_backward_does_not_grow_with_keys,
    values_and_gradients_are_those_of_the_formula,
    without_dropout_it_is_as_near_as_torchs_kernel,
    products_are_those_of_the_instruction,
    queries_of_lowest_scores_attend_to_all_keys_alike,
    saturated_gradients_are_as_exact_as_torchs_operators,
    outputs_can_be_changed_in_place,
    a_causal_mask_hides_what_comes,
    masks_are_read_and_not_copied,
    rows_without_keys_are_zero_and_nan_stays,
    it_is_the_same_from_every_layout_and_under_autocast,
    recomputed_activations_drop_the_same,
    what_torch_refuses_is_refused,
    torchs_own_operators_can_be_chosen,
    threads_change_nothing,
    what_is_not_ours_is_torchs,
):
    torch.manual_seed(7)
    check()
    print(check.__name__)
