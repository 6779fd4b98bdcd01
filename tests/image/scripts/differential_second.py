"""Second derivatives for differential_operators.py: those of penalties of gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from differential_attention import BF16, FP32, Found, mask_of
from formula import OURS, TORCHS
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from cpu_train_stack.operators import decoder, encoder
from cpu_train_stack.operators.adapted_linear import adapted_linear

DTYPES = (FP32, BF16)
Case = tuple[str, list[Found]]


def penalized(name: str, function: Callable[..., Any], formula: Callable[..., Any], given: list[Any]) -> Case:
    """The gradients of the squares of a gradient. None of them is a constant of its formula."""
    computed = []
    for inputs, compute in (
        (given, function),
        ([each.detach().double().requires_grad_() for each in given], formula),
    ):
        torch.manual_seed(1)
        out = compute(*inputs)
        torch.manual_seed(2)
        outer = torch.randn(out.shape)
        try:
            gradients = torch.autograd.grad(out, inputs, outer.to(out.dtype), create_graph=True)
            penalty = sum(each.double().square().sum() for each in gradients)
            computed.append(torch.autograd.grad(penalty, inputs))
        except RuntimeError as error:
            if inputs is not given or "erivative" not in str(error) or "not require grad" in str(error):
                raise
            return f"{name} refused", []
    share = 0.05 if BF16 in [each.dtype for each in given] else 1e-3
    size = sum(float(each.norm()) for each in computed[1]) + 0.1  # they may cancel, for example with one key
    every = zip(given, *computed, strict=True)
    return name, [Found(str(tuple(each.shape)), one, other, share * size) for each, one, other in every]


def of_attention(rng: random.Random) -> Case:
    shape, dtype = (1, 2, rng.choice((8, 17, 33)), rng.choice((8, 20, 65))), rng.choice(DTYPES)
    causal = rng.random() < 0.3
    mask = None if causal else mask_of(rng, rng.choice(("none", "boolean", "float32")), shape, dtype)
    given = [torch.randn(1, 2, count, 16).to(dtype).requires_grad_() for count in (shape[2], shape[3], shape[3])]
    p = rng.choice((0.0, 0.25))
    torch.manual_seed(1)
    units = torch.eye(shape[3], max(shape[3], 8), dtype=dtype).expand(1, 2, -1, -1)
    zeros = [torch.zeros(1, 2, count, units.shape[3], dtype=dtype) for count in shape[2:]]
    keeps = (OURS(*zeros, units, dropout_p=p)[..., : shape[3]] != 0).double() / (1 - p) if p else None

    def formula(query: Any, key: Any, value: Any) -> Any:
        wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
        with sdpa_kernel(SDPBackend.MATH):
            if keeps is None:
                return TORCHS(query, key, value, attn_mask=wide, is_causal=causal)
            units = torch.eye(shape[3], dtype=torch.float64).expand(1, 2, -1, -1)
            weights = TORCHS(query, key, units, attn_mask=wide, is_causal=causal)  # the units select each of them
            return (weights * keeps) @ value

    def ours(query: Any, key: Any, value: Any) -> Any:
        return OURS(query, key, value, attn_mask=mask, is_causal=causal, dropout_p=p)

    return penalized(f"attention {shape} {dtype} causal {causal} p {p}", ours, formula, given)


def of_layers(rng: random.Random) -> Case:
    rows, dtype = rng.randint(2, 20), rng.choice(DTYPES)
    first, second, weight = (torch.randn(shape).requires_grad_() for shape in ((rows, 32), (rows, 32), (32,)))
    narrow = [each.detach().to(dtype).requires_grad_() for each in (first, second)]
    frozen, norm = torch.randn(24, 32), torch.nn.LayerNorm(32)
    kinds: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
        "rms_norm": (
            lambda x, w: decoder.norm(x, None, w, 1e-6, FP32)[1],
            lambda x, w: functional.rms_norm(x, (32,), w, 1e-6),
            [first, weight],
        ),
        "layer_norm": (
            lambda x, y: encoder.normed_sum(x, y, None, norm, FP32),
            lambda x, y: functional.layer_norm(x + y, (32,), norm.weight.double(), norm.bias.double(), norm.eps),
            [first, second],
        ),
        "swiglu": (decoder.gated, lambda x, y: functional.silu(x) * y, narrow),
        "gelu": (encoder.gelu, functional.gelu, [first.detach().to(BF16).requires_grad_()]),
        "lora": (
            lambda x, d, u: adapted_linear(x, frozen, None, d, u, 0.7, FP32),
            lambda x, d, u: functional.linear(x, frozen.double()) + 0.7 * (x @ d.t() @ u.t()),
            [first, torch.randn(4, 32).requires_grad_(), torch.randn(24, 4).requires_grad_()],
        ),
    }
    name = rng.choice(sorted(kinds))
    return penalized(f"{name} {rows} {dtype}", *kinds[name])
