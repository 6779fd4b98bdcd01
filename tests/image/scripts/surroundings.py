"""Checks of the kernels where a script changes what all of torch does: default dtype, autocast, compilation, vmap.

Prints a line for each check that held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import decoder_models
import peft
import torch
from torch.nn import functional

from cpu_train_stack.operators import decoder, dropout, encoder, output_layer, unpadded

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
            assert found.grad_fn.saved_tensors[-1].dtype is FP32
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


def nothing_depends_on_the_default_device() -> None:
    states, heads = torch.randn(2, 20, 16, requires_grad=True), torch.randn(2, 4, 20, 16, requires_grad=True)
    norm, layer, mask = torch.nn.LayerNorm(16), torch.nn.Linear(16, 50), torch.ones(2, 20, dtype=torch.int64)
    results = []
    for device in ("cpu", "meta"):
        torch.manual_seed(1)
        with torch.device(device), output_layer.OutputLayer(layer, True).labelled(mask):
            found = (
                *(
                    functional.scaled_dot_product_attention(one, one, one, dropout_p=0.2, is_causal=True)
                    for one in (heads, heads.to(BF16))
                ),
                *decoder.norm(states, None, norm.weight, 1e-6, FP32),
                encoder.normed_sum(states, states.detach(), dropout.draw_rule(0.2), norm, FP32),
                layer(states),
            )
            weights = states, heads, norm.weight, layer.weight
            gradients = torch.autograd.grad(sum(one.float().sum() for one in found), weights)
            layout = unpadded.layout_of(mask)
            assert layout is not None
            results.append((*found, *gradients, layout.places()))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


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


def dropout_computes_several_gradients_at_once() -> None:
    given = torch.randn(4, 100, requires_grad=True)
    dropped, outer = functional.dropout(given, 0.5), torch.randn(3, 4, 100)

    def gradient(one: Any) -> Any:
        return torch.autograd.grad(dropped, given, one, retain_graph=True)[0]

    expected = torch.stack([gradient(one) for one in outer])
    (found,) = torch.autograd.grad(dropped, given, outer, is_grads_batched=True, retain_graph=True)
    assert torch.equal(found, expected)
    assert torch.equal(torch.func.vmap(gradient)(outer), expected)


def torch_jit_script_compiles_attention() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, dropout=0.0, batch_first=True)
    states = torch.randn(2, 5, 16)
    torch.testing.assert_close(torch.jit.script(layer)(states), layer(states))


def hooks_of_an_adapters_parts_are_called() -> None:
    kinds = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
    for part in ("base_layer", "lora_A", "lora_B", "lora_dropout"):
        for kind in kinds:
            for rate in (0.0, 0.5):
                lora = peft.LoraConfig(target_modules=["0"], lora_dropout=rate)
                model = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(8, 8)), lora)
                owner = getattr(model.base_model.model[0], part)
                seen: list[Any] = []
                hooked = owner if part == "base_layer" else owner["default"]
                getattr(hooked, f"register_{kind}")(lambda *given, seen=seen: seen.append(given))
                with torch.autocast("cpu", dtype=BF16):
                    model(torch.randn(3, 8, requires_grad=True)).sum().backward()
                assert len(seen) == 1, (part, kind, rate)


def results_can_be_changed_in_place() -> None:
    """As those of torch. An adapter's states may have one dimension."""
    lora = peft.LoraConfig(target_modules=["0"], init_lora_weights=False)
    adapted = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(8, 8)), lora)
    heads, angles = torch.randn(1, 2, 5, 16, requires_grad=True), torch.randn(1, 5, 16)
    wide = torch.randn(1, 2, 8, 16, requires_grad=True)

    def attention(given: Any) -> Any:
        torch.manual_seed(1)
        return functional.scaled_dot_product_attention(given, given, given, dropout_p=0.2)

    for compute, given in (
        (adapted, torch.randn(2, 3, 8, requires_grad=True)),
        (adapted, torch.randn(8, requires_grad=True)),
        (lambda given: decoder.rotated(given, angles, angles, FP32), heads),
        (attention, wide),
    ):
        with torch.autocast("cpu", dtype=BF16, enabled=compute is adapted):
            (expected,) = torch.autograd.grad((compute(given) * 2).sum(), given)
            (found,) = torch.autograd.grad(compute(given).mul_(2).sum(), given)
        assert torch.equal(found, expected)


for check in (
    attention_does_not_depend_on_the_default_dtype,
    nothing_depends_on_the_default_device,
    the_output_layer_does_not_depend_on_the_default_dtype,
    decoders_are_torchs_under_autocast_to_float16,
    dropout_computes_several_gradients_at_once,
    torch_jit_script_compiles_attention,
    hooks_of_an_adapters_parts_are_called,
    results_can_be_changed_in_place,
):
    torch.manual_seed(7)
    check()
    print(check.__name__, flush=True)
