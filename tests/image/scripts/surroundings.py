"""Checks of the kernels where a script changes what all of torch does: default dtype, autocast, compilation, vmap.

Prints a line for each check that held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import decoder_models
import torch
from torch.nn import functional

from entrypoints.operators import output_layer

BF16, FP32 = torch.bfloat16, torch.float32


@contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(FP32)


def attention_does_not_depend_on_the_default_dtype() -> None:
    given = torch.randn(2, 4, 40, 32).to(BF16).requires_grad_()
    results = []
    for dtype in (FP32, BF16, torch.float64):
        with default_dtype(dtype):
            torch.manual_seed(1)
            found = functional.scaled_dot_product_attention(given, given, given, dropout_p=0.2)
            saved = found.grad_fn.saved_tensors
            assert [one.dtype for one in saved if one is not None and one.dim() == 3] == [FP32]
            results.append((found, *torch.autograd.grad(found.float().square().sum(), given)))
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


def the_output_layer_does_not_depend_on_the_default_dtype() -> None:
    layer, states = torch.nn.Linear(16, 50), torch.randn(2, 20, 16)
    labels = torch.randint(0, 50, (2, 20))
    results = []
    for dtype in (FP32, BF16, torch.float64):
        with default_dtype(dtype), output_layer.OutputLayer(layer, True).labelled(labels):
            layer.zero_grad()
            sums = layer(states)
            sums[:, 0].sum().backward()
            with torch.no_grad():
                results.append((sums, layer.weight.grad, layer.bias.grad, layer(states)))
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


def decoders_are_torchs_under_autocast_to_float16() -> None:
    batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
    for family in decoder_models.FAMILIES:
        model, calls = decoder_models.model_of(family, adapter=True), decoder_models.counted()
        results = []
        for is_torchs in (False, True):
            with torch.autocast("cpu", dtype=torch.float16):
                if is_torchs:
                    with decoder_models.torchs_own():
                        results.append(model(**batch).loss)
                else:
                    results.append(model(**batch).loss)
        assert torch.equal(*results), family
        assert not any(calls.values()), calls


for check in (
    attention_does_not_depend_on_the_default_dtype,
    the_output_layer_does_not_depend_on_the_default_dtype,
    decoders_are_torchs_under_autocast_to_float16,
):
    torch.manual_seed(7)
    check()
    print(check.__name__, flush=True)
