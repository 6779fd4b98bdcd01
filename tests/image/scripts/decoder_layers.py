"""Checks the parts of decoder layers and LoRA layers against their formulas in double precision.

Prints what is changed, and, unless the argument is `changed`, the name of each check that passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import decoder_models
import peft
import torch
from rounding import BF16, FP32, close, doubles, values
from torch.nn import functional
from transformers.models.llama import modeling_llama

from cpu_train_stack.operators import decoder, four_bits
from cpu_train_stack.operators.adapted_linear import adapted_linear


def main() -> None:
    forwards = {"decoder-layers": modeling_llama.LlamaMLP.forward, "lora": peft.tuners.lora.layer.Linear.forward}
    print("changed:", *(name for name, forward in forwards.items() if hasattr(forward, "__wrapped__")))
    if sys.argv[1:] == ["changed"]:
        return
    torch.manual_seed(0)
    for check in (norms, sums, gates, rotations, threads, adapters, *decoder_models.CHECKS):
        check()
        print(check.__name__, flush=True)


def norms() -> None:
    # Around the ends of vectors; rows of several threads.
    for features in (2, 15, 16, 33, 64, 896):
        for stream_dtype, added_dtype, dtype in (
            (FP32, None, FP32),
            (FP32, None, BF16),
            (FP32, BF16, BF16),
            (FP32, FP32, FP32),
            (BF16, BF16, BF16),
        ):
            stream, weight = values(3, 41, features, dtype=stream_dtype), values(features)
            added = None if added_dtype is None else values(3, 41, features, dtype=added_dtype)
            total, out = decoder.norm(stream, added, weight, 1e-6, dtype)
            assert (total.dtype, out.dtype) == (stream_dtype, dtype)
            by_total, by_out = torch.randn_like(total), torch.randn_like(out)
            torch.autograd.backward((total, out), (by_total, by_out))
            wide, wide_weight = doubles(stream, weight)
            wide_added = None if added is None else doubles(added)[0]
            expected = wide if wide_added is None else wide + wide_added
            # The stream is rounded before it is normalized, and its rounding has the gradient 1.
            expected = expected + (total.detach().double() - expected).detach()
            normed = wide_weight * expected * torch.rsqrt(expected.square().mean(-1, keepdim=True) + 1e-6)
            torch.autograd.backward((expected, normed), (by_total.double(), by_out.double()))
            exact = wide.detach() if wide_added is None else (wide + wide_added).detach()
            close(total, exact)
            close(out, normed.detach())
            close(stream.grad, wide.grad, factor=4)
            close(weight.grad, wide_weight.grad, factor=10)
            if added is not None and wide_added is not None:
                close(added.grad, wide_added.grad, factor=4)


def sums() -> None:
    for size in (1, 17, 40_000):
        for dtype in (FP32, BF16):
            stream, added = values(size), values(size, dtype=dtype)
            found = decoder.add(stream, added)
            assert torch.equal(found, stream + added.float())
            outer = torch.randn(size)
            found.backward(outer)
            assert torch.equal(stream.grad, outer)
            assert torch.equal(added.grad, outer.to(dtype))


def gates() -> None:
    for size in (1, 15, 31, 40_001):
        for dtype in (FP32, BF16):
            gate, up = (values(size, dtype=dtype) for _ in range(2))
            with torch.no_grad():
                gate[: size // 2] *= 30  # where the logistic function is 0 or 1
            out = decoder.gated(gate, up)
            outer = torch.randn(size).to(dtype)
            out.backward(outer)
            wide_gate, wide_up = doubles(gate, up)
            expected = functional.silu(wide_gate) * wide_up
            expected.backward(outer.double())
            for found, wide in ((out, expected.detach()), (gate.grad, wide_gate.grad), (up.grad, wide_up.grad)):
                close(found, wide)
    odd = torch.tensor([float("nan"), float("inf"), -1e9, 0.0])
    assert torch.equal(decoder.gated(odd, torch.ones(4)).isnan(), torch.tensor([True, False, False, False]))


def rotations() -> None:
    for heads, tokens, features in ((1, 1, 2), (3, 5, 34), (2, 70, 64), (4, 33, 128)):
        for dtype, result in ((FP32, FP32), (BF16, BF16), (BF16, FP32)):
            for rows in (1, 2):
                states = values(2, tokens, heads, features, dtype=dtype)
                cosines, sines = torch.randn(rows, tokens, features), torch.randn(rows, tokens, features)
                found = decoder.rotated(states.transpose(1, 2), cosines, sines, result)
                outer = torch.randn(found.shape).to(result)
                found.backward(outer)
                (wide,) = doubles(states)
                moved = wide.transpose(1, 2)
                half = features // 2
                turned = torch.cat((-moved[..., half:], moved[..., :half]), -1)
                expected = moved * cosines[:, None].double() + turned * sines[:, None].double()
                expected.backward(outer.double())
                close(found, expected.detach())
                close(states.grad, wide.grad)


def threads() -> None:
    """The same bits with every number of threads."""
    found = []
    before = torch.get_num_threads()
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        torch.manual_seed(1)
        stream, added, weight = values(133, 900), values(133, 900, dtype=BF16), values(900)
        results = decoder.norm(stream, added, weight, 1e-6, BF16)
        torch.autograd.backward(results, [torch.randn_like(each) for each in results])
        found.append((*results, stream.grad, added.grad, weight.grad))
    torch.set_num_threads(before)
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True))


def adapters(pack: Callable[[Any], Any] | None = None) -> None:
    """`pack`: how the frozen weight is stored in 4 bits."""
    for dtype in (FP32, BF16):
        for has_bias in (False, True):
            for rate in (0.0, 0.5):
                states, weight = values(2, 37, 48, dtype=dtype), torch.randn(33, 48)
                weight = weight if pack is None else pack(weight)
                bias, down, up = torch.randn(33) if has_bias else None, values(4, 48), values(33, 4)
                drop = functional.dropout(torch.ones(2, 37, 48), rate).to(dtype)
                found = adapted_linear(states, weight, bias, down, up, 0.7, dtype, states * drop if rate else None)
                outer = torch.randn(found.shape).to(dtype)
                found.backward(outer)
                wide, wide_down, wide_up = doubles(states, down, up)
                inputs = wide * drop.double() if rate else wide
                full = (weight if pack is None else four_bits.unpacked(weight, FP32)).double()
                expected = functional.linear(wide, full, None if bias is None else bias.double())
                expected = expected + 0.7 * (inputs @ wide_down.t() @ wide_up.t())
                expected.backward(outer.double())
                # Weights are rounded too, and the thin product between the two others.
                for one, other in ((found, expected), (states.grad, wide.grad), (down.grad, wide_down.grad),
                                   (up.grad, wide_up.grad)):  # fmt: skip
                    close(one, other.detach(), dtype, factor=4)


if __name__ == "__main__":
    main()
