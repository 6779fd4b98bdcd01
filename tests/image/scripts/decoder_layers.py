"""Checks the parts of decoder layers and LoRA layers against their formulas in double precision.

Prints what is changed, and, unless the argument is `changed`, the name of each check that passes.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import peft
import torch
import transformers
from torch.nn import functional
from transformers.models.llama import modeling_llama

from entrypoints.adapt import lora as adapted
from entrypoints.operators import decoder, four_bits, numbers
from entrypoints.operators.adapted_linear import adapted_linear

BF16, FP32 = torch.bfloat16, torch.float32
# Of one rounding to the dtype, relative to the largest value of the tensor; sums of fp32 have a few.
TOLERANCES = {FP32: 3e-6, BF16: 2**-8}


def main() -> None:
    forwards = {"decoder-layers": modeling_llama.LlamaMLP.forward, "lora": peft.tuners.lora.layer.Linear.forward}
    print("changed:", *(name for name, forward in forwards.items() if hasattr(forward, "__wrapped__")))
    if sys.argv[1:] == ["changed"]:
        return
    torch.manual_seed(0)
    for check in (norms, sums, gates, rotations, adapters, models, recomputed_models, hooked_models,
                  narrowed_weights):  # fmt: skip
        check()
        print(check.__name__, flush=True)


def close(found: Any, expected: Any, dtype: Any = None, factor: float = 1.0) -> None:
    """`dtype`: in which the result was rounded, if not its own."""
    scale = float(expected.abs().max()) or 1.0
    distance = float((found.detach().double() - expected).abs().max()) / scale
    assert distance <= factor * TOLERANCES[dtype or found.dtype], (distance, found.dtype, tuple(found.shape))


def doubles(*tensors: Any) -> list[Any]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def values(*shape: int, dtype: Any = FP32) -> Any:
    return torch.randn(*shape).to(dtype).requires_grad_()


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


FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def model_of(family: str, adapter: bool = False) -> Any:
    config, create = FAMILIES[family]
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    model = create(config(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True))
    if adapter:
        lora = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False)
        model = peft.get_peft_model(model, lora)
    return model


def gradients(model: Any, batch: dict[str, Any], autocast: bool) -> tuple[Any, dict[str, Any]]:
    model.zero_grad()
    with torch.autocast("cpu", dtype=BF16, enabled=autocast):
        loss = model(**batch).loss
    loss.backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return loss.detach(), found


def models() -> None:
    """Complete models, against the same in double precision. Under autocast, torch's own is as far away."""
    ours = torchs = 0.0
    for family in [*FAMILIES] * 3:
        batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
        for adapter in (False, True):
            model = model_of(family, adapter)
            expected, wanted = gradients(copy.deepcopy(model).double(), batch, autocast=False)
            for autocast in (False, True):
                calls = counted()
                loss, found = gradients(model, batch, autocast)
                assert all(calls.values()), (family, calls)
                assert abs(loss - expected) < (2e-2 if autocast else 1e-6) * expected
                distances = distances_of(found, wanted)
                assert max(distances) < (0.5 if autocast else 1e-4), distances
            ours += sum(distances)
            with torchs_own():
                torchs += sum(distances_of(gradients(model, batch, autocast=True)[1], wanted))
    assert ours < 1.15 * torchs, (ours, torchs)


def distances_of(found: dict[str, Any], wanted: dict[str, Any]) -> list[float]:
    assert found.keys() == wanted.keys()
    return [float((found[name] - one).norm() / one.norm()) for name, one in wanted.items()]


@contextlib.contextmanager
def torchs_own() -> Iterator[None]:
    """Nothing is computed by the kernels inside the block."""
    no = mock.Mock(return_value=False)
    with mock.patch.object(numbers, "computable", no), mock.patch.object(adapted, "are_plain", no):
        yield


_KERNELS = ("norm", "gated", "add", "rotated")
_ORIGINALS = {name: getattr(decoder, name) for name in _KERNELS}


def counted() -> dict[str, int]:
    """How often each part is computed from now on."""
    calls = dict.fromkeys(_KERNELS, 0)

    def counting(name: str) -> Any:
        def call(*args: Any) -> Any:
            calls[name] += 1
            return _ORIGINALS[name](*args)

        return call

    for name in _KERNELS:
        setattr(decoder, name, counting(name))
    return calls


def recomputed_models() -> None:
    """Activation checkpointing computes the layers again, with the same results."""
    for family in FAMILIES:
        model = model_of(family).train()
        batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
        loss, wanted = gradients(model, batch, autocast=True)
        model.gradient_checkpointing_enable()
        calls = counted()
        recomputed_loss, found = gradients(model, batch, autocast=True)
        assert calls["gated"] == 4, calls  # two layers, twice
        assert recomputed_loss == loss
        assert max(distances_of(found, wanted)) < 1e-5


def hooked_models() -> None:
    """Hooks of the norms are called, and see what they saw before."""
    batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
    model = model_of("llama")
    expected, _ = gradients(model, batch, autocast=False)
    seen: list[Any] = []
    model.model.layers[0].input_layernorm.register_forward_hook(lambda *found: seen.append(found[2]))
    loss, _ = gradients(model, batch, autocast=False)
    assert len(seen) == 1
    torch.testing.assert_close(loss, expected)


def narrowed_weights() -> None:
    """A Trainer stores frozen weights that are exact in bf16 in bf16 while it trains."""
    for exact in (True, False):
        torch.manual_seed(1)
        model = model_of("qwen2")
        if exact:
            model = model.to(BF16).to(FP32)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
        base = model.get_base_model().model.layers[0].mlp.up_proj.base_layer
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        embedding, dtypes = model.get_input_embeddings(), set()
        rows = [{"input_ids": list(range(9)), "labels": list(range(9))}] * 8
        arguments = transformers.TrainingArguments(
            "/tmp/narrowed", max_steps=3, bf16=True, report_to=[], disable_tqdm=True, save_strategy="no",
            logging_steps=1, use_cpu=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        layer = model.get_base_model().model.layers[0]
        layer.register_forward_pre_hook(lambda *_: dtypes.add(base.weight.dtype))  # noqa: B023
        model.lm_head.register_forward_pre_hook(lambda *_: dtypes.add(embedding.weight.dtype))  # noqa: B023
        trainer.train()
        assert dtypes == {BF16 if exact else FP32}, dtypes
        assert base.weight.dtype == embedding.weight.dtype == FP32
        for name, one in model.named_parameters():
            assert one.requires_grad or torch.equal(one, before[name]), name
        with torch.no_grad():  # without autocast
            model(input_ids=torch.arange(9)[None])


if __name__ == "__main__":
    main()
