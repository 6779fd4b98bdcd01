"""Checks of the dropout kernel, against a reference of the generator and against what dropout has to be.

Prints a line for each check that held. Bounds on chance are six standard deviations wide: one in 500 million.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cpu_train_stack.operators import dropout, dropout_operator, library
from cpu_train_stack.operators.dropout import Rule

SIGMAS = 6
BF, P = torch.bfloat16, 0.1
THRESHOLD = round(P * 65536)


def philox(counter: int, key: tuple[int, int]) -> list[int]:
    """Philox4x32-10 as its paper writes it, on Python's integers."""
    words = [counter >> (32 * part) & 0xFFFFFFFF for part in range(4)]
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        low = 0xFFFFFFFF
        words = [second >> 32 ^ words[1] ^ key[0], second & low, first >> 32 ^ words[3] ^ key[1], first & low]
        key = (key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low)
    return words


def numbers(block: int, seed: int) -> Any:
    """The block's 64 numbers of 16 bits, in the order that dropout.cpp gives them."""
    calls = [philox(block * 8 + call, (seed & 0xFFFFFFFF, seed >> 32)) for call in range(8)]
    words = [word for call in calls for word in call[:2]] + [word for call in calls for word in call[2:]]
    return np.array(words, dtype=np.uint32).view(np.uint16)


def kept(count: int, p: float = P) -> Any:
    """1 where an element was kept."""
    return (functional.dropout(torch.ones(count), p) != 0).numpy().astype(np.float64)


def near(found: float, expected: float, deviation: float) -> None:
    """Fails unless `found` is within SIGMAS deviations."""
    assert abs(found - expected) <= SIGMAS * deviation, (found, expected, deviation)


def the_generator_is_philox() -> None:
    """Two vectors of the paper's own test program, then the library against this file."""
    assert philox(0, (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox(2**128 - 1, (0xFFFFFFFF,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    loaded = ctypes.CDLL(str(library.LIBRARY))
    for block, seed in ((0, 0), (3, 77), (2**33 + 5, 2**64 - 3)):
        found: Any = np.empty(64, dtype=np.uint16)
        loaded.random_numbers(ctypes.c_uint64(block), ctypes.c_uint64(seed), ctypes.c_void_p(found.ctypes.data))
        assert (found == numbers(block, seed)).all(), (block, seed)


def each_element_follows_its_number() -> None:
    """Vector code and the end that it does not cover, for both types, with numbers that equal the threshold."""
    seed, count = 2**63 + 12345, 64 * 70 + 37
    drawn = np.concatenate([numbers(block, seed) for block in range(71)])[:count]
    values = torch.randn(count)
    values[7] = math.inf
    for threshold in (THRESHOLD, int(drawn[5]), int(drawn[-1])):
        keep = torch.from_numpy(drawn >= threshold)
        scale = torch.tensor(1 / (1 - threshold / 65536), dtype=torch.float32)
        for dtype in (torch.float32, BF):
            given = values.to(dtype)
            expected = torch.where(keep, (given.float() * scale).to(dtype), torch.zeros((), dtype=dtype))
            assert torch.equal(dropout_operator.drop(given, Rule(seed, threshold)), expected), (threshold, dtype)
    assert dropout_operator.drop(torch.full((64,), math.nan).to(BF), Rule(seed, 1)).isnan().all()


def the_rate_is_right() -> None:
    for p in (0.0011, 0.1, 0.5, 0.9):
        rate, count = round(p * 65536) / 65536, 4_000_000
        near(1 - kept(count, p).mean(), rate, math.sqrt(rate * (1 - rate) / count))


def elements_are_independent() -> None:
    """Neighbours at every distance up to 130 and at powers of two, two calls, and runs of 8 (chi-square)."""
    count = 2**20
    first, second = kept(count), kept(count)
    rate = 1 - THRESHOLD / 65536
    near(float(np.corrcoef(first, second)[0, 1]), 0, 1 / math.sqrt(count))
    centred = (first - rate) / math.sqrt(rate * (1 - rate))
    for lag in (*range(1, 131), 256, 512, 768, 1024, 4096, 2**14, 2**17):
        near(float((centred[:-lag] * centred[lag:]).mean()), 0, 1 / math.sqrt(count - lag))
    runs = kept(8 * count, 0.5).reshape(-1, 8) @ (1 << np.arange(8))
    seen = np.bincount(runs.astype(int), minlength=256)
    near(float(((seen - count / 256) ** 2 / (count / 256)).sum()), 255, math.sqrt(2 * 255))


def seeds_follow_torchs_generator() -> None:
    ones = torch.ones(1000, 7)
    torch.manual_seed(3)
    first, second = functional.dropout(ones, P), functional.dropout(ones, P)
    torch.manual_seed(3)
    assert torch.equal(first, functional.dropout(ones, P))
    state = torch.get_rng_state()
    assert torch.equal(second, functional.dropout(ones, P))
    torch.set_rng_state(state)
    assert torch.equal(second, functional.dropout(ones, P))
    assert not torch.equal(first, second)


def threads_change_nothing() -> None:
    values, before = torch.randn(300_001), torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(dropout_operator.drop(values, Rule(9, THRESHOLD)))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def gradients_pass_where_values_did() -> None:
    values = torch.randn(5, 4, 300).transpose(0, 2).requires_grad_()
    dropped = functional.dropout(values, 0.4)
    (gradient,) = torch.autograd.grad(dropped.square().sum(), values, create_graph=True)
    scale = 1 / (1 - round(0.4 * 65536) / 65536)
    assert torch.allclose(gradient, 2 * dropped * scale)
    (again,) = torch.autograd.grad(gradient.sum(), values)
    assert torch.allclose(again, (dropped != 0) * 2 * scale**2)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    grads = []
    for wrapped in (False, True):
        torch.manual_seed(1)
        module.zero_grad()
        rows = torch.ones(40, 8)
        out = checkpoint(module, rows, use_reentrant=False) if wrapped else module(rows)
        out.sum().backward()
        grads.append(module[0].weight.grad.clone())
    assert torch.equal(grads[0], grads[1])


def layouts_are_kept() -> None:
    """As torch does; and a gradient's own layout does not matter."""
    images = torch.randn(2, 6, 5, 7)
    last = images.to(memory_format=torch.channels_last)
    for given in (images, last, last[:, ::2], images.permute(3, 0, 2, 1), images[:, :1].expand(2, 6, 5, 7)):
        for dtype in (torch.float32, BF):
            values = given.detach().to(dtype).requires_grad_()
            dropped = functional.dropout(values, 0.4)
            assert dropped.stride() == torch.empty_like(values).stride()
            for format in (torch.contiguous_format, torch.channels_last):
                outer = torch.ones(values.shape, dtype=dtype).to(memory_format=format)
                (gradient,) = torch.autograd.grad(dropped, values, outer, retain_graph=True)
                assert torch.equal(gradient != 0, dropped != 0)
    assert functional.dropout(last, P).is_contiguous(memory_format=torch.channels_last)


def attention_drops_too() -> None:
    """torch's own attention, whose dropout is called from C++, and a layer of torch's encoder."""
    q = torch.randn(2, 3, 32, 8, requires_grad=True)
    values = torch.eye(32).expand(2, 3, 32, 32)
    kept_share = (functional.scaled_dot_product_attention(q, q, values, dropout_p=0.25) != 0).float().mean()
    near(float(kept_share), 0.75, math.sqrt(0.75 * 0.25 / (2 * 3 * 32 * 32)))
    torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)(torch.randn(3, 4, 8)).sum().backward()


def what_torch_refuses_is_refused() -> None:
    """By torch's own message, which it has for another operator too."""
    for p in (math.nan, math.inf, -math.inf, -0.1, 1.1):
        for train in (False, True):
            messages = []
            for function in (torch.dropout, torch.feature_dropout):
                try:
                    function(torch.ones(4, 5), p, train)
                except RuntimeError as error:
                    messages.append(str(error))
            assert len(messages) == 2, (p, train)
            assert messages[0] == messages[1]


def the_rest_is_as_ever() -> None:
    values, tangents = torch.randn(4, 5), torch.randn(4, 5)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(functional.dropout(forward_ad.make_dual(values, tangents), 0.5))
    assert torch.equal(dual.tangent, (dual.primal != 0) * 2 * tangents)
    assert not dropout.are_plain(values.to_sparse())
    assert functional.dropout(values, P, training=False) is values
    assert functional.dropout(values, 0.0) is values
    assert functional.dropout(values, 1.0).abs().sum() == 0
    assert functional.dropout(torch.ones(3, 0), P).shape == (3, 0)
    for dtype in (torch.float64, torch.float16):
        dropped = functional.dropout(torch.ones(1000, dtype=dtype), 0.5)
        assert dropped.dtype is dtype
        assert set(dropped.tolist()) == {0.0, 2.0}
    assert 0 < (functional.dropout(torch.ones(10_000_000), 2**-12) == 0).sum() < 10_000
    assert set(torch.func.grad(lambda x: functional.dropout(x, 0.5).sum())(torch.ones(99)).tolist()) == {0.0, 2.0}


assert dropout._libraries
for check in (
    the_generator_is_philox,
    each_element_follows_its_number,
    the_rate_is_right,
    elements_are_independent,
    seeds_follow_torchs_generator,
    threads_change_nothing,
    gradients_pass_where_values_did,
    layouts_are_kept,
    attention_drops_too,
    what_torch_refuses_is_refused,
    the_rest_is_as_ever,
):
    torch.manual_seed(7)
    check()
    print(check.__name__)
