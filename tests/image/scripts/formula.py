"""What attention with dropout has to give, for the checks of the kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

OURS = functional.scaled_dot_product_attention
TORCHS = torch._C._nn.scaled_dot_product_attention
P = 0.25
KEPT = 1 / (1 - round(P * 65536) / 65536)


def tensors(queries: int, keys: int, dtype: Any = torch.float32, features: int = 8, fewer: int = 3) -> Any:
    """Query, key and value for two rows of three heads; `fewer`: of the keys and values."""
    sizes = ((3, queries), (fewer, keys), (fewer, keys))
    return tuple(torch.randn(2, heads, size, features).to(dtype).requires_grad_() for heads, size in sizes)


def kept(queries: int, keys: int, seed: int) -> Any:
    """What a seed keeps, as 0 and 1: attention to the keys one by one, all alike."""
    torch.manual_seed(seed)
    size = max(8, keys)
    zero = torch.zeros(2, 3, queries, size), torch.zeros(2, 3, keys, size)
    return (OURS(*zero, torch.eye(keys, size).expand(2, 3, keys, size), dropout_p=P) != 0).float()[..., :keys]


def expected(q: Any, k: Any, v: Any, bias: Any, keeps: Any, factor: float) -> Any:
    """Attention as its formula has it, in double precision."""
    scores = q.double() @ k.double().transpose(2, 3) * factor
    weights = (scores if bias is None else scores + bias).softmax(-1).nan_to_num()
    return (weights * keeps * KEPT) @ v.double()


def derived(found: Any, given: Any, outer: Any) -> Any:
    """The result and its derivatives."""
    return (found, *torch.autograd.grad(found, given, outer.to(found.dtype)))


def check_hidden_rows_and_nan(dtype: Any) -> None:
    """A row that may look at no key is zero, with finite gradients; what is no number stays in its own head."""
    given = tensors(4, 20, dtype)
    mask = torch.ones(2, 1, 4, 20, dtype=torch.bool)
    mask[1, :, 2] = False
    found = OURS(*given, attn_mask=mask, dropout_p=P)
    assert (found[1, :, 2] == 0).all()
    found.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in given)
    with torch.no_grad():
        given[1][0, 0, 7] = math.nan
    found = OURS(*given, dropout_p=P)
    assert found[0, 0].isnan().all()
    assert found[0, 1:].isfinite().all()


def check_nan_behind_a_mask(dtype: Any) -> None:
    """NaN shows wherever it does in torch: in a row that sees nothing else, and in one that does not see it."""
    visible = torch.zeros(1, 1, 3, 40, dtype=torch.bool)
    visible[:, :, 0, 7] = visible[:, :, 1, 8] = True
    for mask in (visible, torch.zeros(visible.shape).masked_fill(~visible, -math.inf).to(dtype)):
        patterns = []
        for attention, p in ((OURS, P), (TORCHS, 0.0)):
            torch.manual_seed(1)
            given = tensors(3, 40, dtype)
            with torch.no_grad():
                given[1][0, 0, 7] = math.nan
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION if p else SDPBackend.MATH):
                found = attention(*given, attn_mask=mask, dropout_p=p)
            found.sum().backward()
            patterns.append([tensor.isnan() for tensor in (found, *(tensor.grad for tensor in given))])
        assert patterns[1][0][0, 0].all()
        for ours, torchs in zip(*patterns, strict=True):
            assert torch.equal(ours, torchs)


def raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


def check_refusals(dtype: Any) -> None:
    """What torch refuses is refused: masks of other types, and tensors of several."""
    given, plain, count = tensors(6, 6, dtype), torch.ones(1, 1, 6, 6), 0
    kinds = (torch.int64, torch.uint8, torch.float16, torch.float64, torch.bfloat16, torch.float32, torch.bool)
    for (kind, p), autocast in itertools.product(itertools.product(kinds, (0.0, P)), (False, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for mixed, mask in ((given, plain.to(kind)), ((given[0], given[1].to(kind), given[2]), None)):
                refused = [
                    raises(lambda: attention(*mixed, attn_mask=mask, dropout_p=p))  # noqa: B023 - called here
                    for attention in (OURS, TORCHS)
                ]
                assert refused[0] == refused[1], (kind, p, autocast, mask is None)
                count += refused[0]
    for p in (math.nan, math.inf, -0.1, 1.1):
        for attention in (OURS, TORCHS):
            assert raises(lambda: attention(*given, dropout_p=p)), (p, attention)  # noqa: B023 - called here
    assert count > len(kinds)


def check_math_backend(dtype: Any) -> None:
    """Whoever chooses torch's own operators gets them, and with them derivatives of derivatives."""
    given = tensors(6, 6, dtype)
    with sdpa_kernel(SDPBackend.MATH):
        found = OURS(*given, dropout_p=P)
    (gradient,) = torch.autograd.grad(found.float().square().sum(), given[0], create_graph=True)
    (second,) = torch.autograd.grad(gradient.float().square().sum(), given[1])
    assert second.isfinite().all()
    assert second.any()
