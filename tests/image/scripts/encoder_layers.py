"""Checks the parts of encoder layers against their formulas in double precision.

Prints what is changed, and, unless the argument is `changed`, the name of each check that passes.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import encoder_models
import torch
from rounding import BF16, FP32, close, doubles, values
from torch.nn import functional
from transformers.models.bert import modeling_bert

from cpu_train_stack.operators import dropout, dropout_operator, encoder


def main() -> None:
    print("changed:", *(["encoder-layers"] if hasattr(modeling_bert.BertOutput.forward, "__wrapped__") else []))
    if sys.argv[1:] == ["changed"]:
        return
    torch.manual_seed(0)
    for check in (
        sums,
        dropped_sums,
        branches,
        gelus,
        threads,
        changed_streams,
        default_dtypes,
        *encoder_models.CHECKS,
    ):
        check()
        print(check.__name__, flush=True)


def norm_of(features: int) -> Any:
    norm = torch.nn.LayerNorm(features, eps=1e-6, dtype=FP32)
    for weight in norm.parameters():
        weight.data = torch.randn(features, dtype=FP32)
    return norm


def check_sum(rows: int, features: int, dtype: Any, rule: Any) -> None:
    added, stream, norm = values(rows, features, dtype=dtype), values(rows, features), norm_of(features)
    with torch.no_grad():
        stream += 3  # the mean is not zero
    out = encoder.normed_sum(added, stream, rule, norm, dtype)
    kept = dropout_operator.drop(torch.ones(rows, features), rule).double() if rule else 1.0
    wide = doubles(added, stream, norm.weight, norm.bias)
    expected = functional.layer_norm(wide[0] * kept + wide[1], (features,), wide[2], wide[3], 1e-6)
    outer = torch.randn(rows, features, dtype=FP32)
    out.backward(outer)
    expected.backward(outer.double())
    close(out, expected.detach(), factor=2)
    for found, exact in zip((added, stream, norm.weight, norm.bias), wide, strict=True):
        assert found.grad.dtype == found.dtype
        close(found.grad, exact.grad, factor=4)
    (copied,) = encoder.branches(out.detach(), 1)
    assert torch.equal(copied, out.to(BF16))


def sums() -> None:
    """Around the ends of vectors and of groups of rows."""
    for features in (5, 15, 16, 33, 64, 768):
        for rows in (1, 31, 33, 123):
            for dtype in (FP32, BF16):
                check_sum(rows, features, dtype, None)


def dropped_sums() -> None:
    """The elements that dropout drops for the same seed, in every position of a block."""
    for seed, features in enumerate((5, 15, 33, 48, 49, 64, 100, 768)):
        for dtype in (FP32, BF16):
            for threshold in (6554, 40_000):
                check_sum(67, features, dtype, dropout.Rule(2**63 + seed, threshold))


def branches() -> None:
    for size, count in itertools.product((1, 17, 40_000), (1, 3)):
        stream = values(size)
        copies = encoder.branches(stream, count)
        assert all(torch.equal(each, stream.to(BF16)) for each in copies)
        branch = encoder.branch_of(stream)
        assert torch.equal(branch, stream)
        outers = [torch.randn(size), *(torch.randn(size).to(BF16) for _ in copies)]
        torch.autograd.backward((branch, *copies), outers)
        close(stream.grad, sum(outer.double() for outer in outers))
        assert encoder.branch_of(stream) is stream


def gelus() -> None:
    """Of all bfloat16 numbers."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(BF16)
    numbers = numbers[numbers.isfinite()].requires_grad_()
    out = encoder.gelu(numbers)
    outer = torch.randn(len(numbers)).to(BF16)
    out.backward(outer)
    (wide,) = doubles(numbers)
    expected = functional.gelu(wide)
    expected.backward(outer.double())
    for found, exact in ((out, expected), (numbers.grad, wide.grad)):
        excess = (found.detach().double() - exact.detach()).abs() - exact.detach().abs() * 1.02 * 2**-8
        assert float(excess.max()) < 2e-5, excess.max()
    odd = torch.tensor([float("nan"), float("inf"), -1e9], dtype=BF16)
    torch.testing.assert_close(encoder.gelu(odd), functional.gelu(odd.double()).to(BF16), equal_nan=True)


def threads() -> None:
    """The same bits with every number of threads."""
    found = []
    before = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        torch.manual_seed(1)
        added, stream, norm = values(133, 768, dtype=BF16), values(133, 768), norm_of(768)
        out = encoder.normed_sum(added, stream, dropout.Rule(5, 6554), norm, BF16)
        copies = encoder.branches(out, 3)
        states = encoder.gelu(copies[0])
        torch.autograd.backward((encoder.branch_of(out), states, *copies[1:]), [torch.randn(133, 768)] * 4)
        found.append((out, *copies, states, added.grad, stream.grad, norm.weight.grad, norm.bias.grad))
    torch.set_num_threads(before)
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True))


def changed_streams() -> None:
    """A copy is not used if the stream has changed since, or if something else takes its place."""
    norm, added, stream = norm_of(48), values(5, 48), values(5, 48)
    changed = encoder.normed_sum(added, stream, None, norm, BF16).mul_(2)
    for out in (changed, changed * 2, changed[1:]):
        (copied,) = encoder.branches(out, 1)
        assert torch.equal(copied, out.to(BF16))
    out = encoder.normed_sum(added, stream, None, norm, BF16)
    with torch.no_grad():
        encoder.branches(out, 1)
    assert encoder.branch_of(out) is out  # whose gradient would be lost
    streams = [encoder.normed_sum(added, stream, None, norm, BF16) for _ in range(3)]
    assert len(encoder._KEPT.by_stream) == 1
    del streams
    assert len(encoder._KEPT.by_stream) == 0


def default_dtypes() -> None:
    """The kernels get float32, whatever the script has as its default."""
    for dtype in (torch.float64, BF16):
        torch.set_default_dtype(dtype)
        try:
            check_sum(67, 48, BF16, None)
        finally:
            torch.set_default_dtype(FP32)


if __name__ == "__main__":
    main()
