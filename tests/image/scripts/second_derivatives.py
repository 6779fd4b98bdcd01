"""Derivatives of derivatives through this project's operators, against the formulas in double precision."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import decoder_models
import torch
import transformers
from rounding import BF16, FP32, doubles, values
from torch.nn import functional

from cpu_train_stack.operators import attention, decoder, dropout, dropout_operator, encoder, output_layer
from cpu_train_stack.operators.adapted_linear import adapted_linear

RULE = dropout.Rule(2**63 + 5, 20_000)
NO_RULE = attention.NO_DROPOUT


def check(ours: Callable[..., Any], exact: Callable[..., Any], *inputs: Any, tolerance: float = 2e-5) -> None:
    wide = doubles(*inputs)
    with torch.no_grad():
        outers = [torch.randn_like(result) for result in _tuple(exact(*wide))]
    pairs = zip(_penalized(ours, inputs, outers), _penalized(exact, wide, outers), strict=True)
    differences = [float((found.double() - wanted).norm() / wanted.norm()) for found, wanted in pairs]
    assert max(differences) < tolerance, differences


def _penalized(function: Callable[..., Any], inputs: Any, outers: Any) -> Any:
    """The gradients of a sum of results and of the squares of its own gradients."""
    results = _tuple(function(*inputs))
    total = sum((result.double() * outer).sum() for result, outer in zip(results, outers, strict=True))
    first = torch.autograd.grad(total, inputs, create_graph=True)
    return torch.autograd.grad(total + sum(one.double().square().sum() for one in first), inputs)


def _tuple(results: Any) -> Any:
    return results if isinstance(results, tuple) else (results,)


def attention_with_masks() -> None:
    """Of each kernel that this CPU supports, also with shared keys. A query that sees no key stays zero."""
    visible = torch.ones(2, 1, 7, 70, dtype=torch.bool)
    visible[1, ..., 9:] = visible[0, :, 3] = False
    hides = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    causal = torch.ones(7, 70, dtype=torch.bool).tril()
    masks = ((None, torch.ones(7, 70, dtype=torch.bool)), (visible, visible), (hides, visible), ("causal", causal))
    kernels = attention.choose("avx512_bf16", widened=False).kernels
    for dtype, rule, heads, (mask, seen) in itertools.product(kernels, (RULE, NO_RULE), (4, 2), masks):

        def ours(q: Any, k: Any, v: Any, dtype: Any = dtype, rule: Any = rule, mask: Any = mask) -> Any:
            is_causal = isinstance(mask, str)
            return kernels[dtype](q, k, v, None if is_causal else mask, is_causal, 0.3, rule)

        kept = _kept((2, 4, 7, 70), rule)
        inputs = [values(2, count, size, 16, dtype=dtype) for count, size in ((4, 7), (heads, 70), (heads, 70))]

        def exact(q: Any, k: Any, v: Any, seen: Any = seen, kept: Any = kept) -> Any:
            return _attention(q, k, v, seen, kept)

        check(ours, exact, *inputs, tolerance=2e-5 if dtype is FP32 else 4e-2)


def attention_of_rows_end_to_end() -> None:
    starts, longest = torch.tensor([0, 70, 71, 90]), 128
    joined = attention.choose("avx512_bf16", widened=False).joined
    for dtype, rule, heads, is_causal in itertools.product(joined, (RULE, NO_RULE), (4, 2), (False, True)):

        def ours(*given: Any, dtype: Any = dtype, rule: Any = rule, is_causal: bool = is_causal) -> Any:
            return joined[dtype](*given, None, is_causal, 0.3, rule, starts)

        def exact(q: Any, k: Any, v: Any, rule: Any = rule, is_causal: bool = is_causal) -> Any:
            found = []
            for start, end in itertools.pairwise(starts.tolist()):
                tokens, size = slice(start, end), end - start
                row = q[:, :, tokens], k[:, :, tokens], v[:, :, tokens]
                seen = torch.ones(size, size, dtype=torch.bool)
                kept = _kept((1, 4, size, size), rule, start * 4 * longest)
                found.append(_attention(*row, seen.tril() if is_causal else seen, kept))
            return torch.cat(found, 2)

        inputs = [values(1, count, 90, 16, dtype=dtype) for count in (4, heads, heads)]
        check(ours, exact, *inputs, tolerance=2e-5 if dtype is FP32 else 4e-2)


def _attention(query: Any, key: Any, value: Any, seen: Any, kept: Any) -> Any:
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    seen = seen.expand(len(query), 1, *seen.shape[-2:])
    is_empty = ~seen.any(-1, keepdim=True)
    scores = (query @ key.transpose(2, 3) * 0.3).masked_fill(~seen & ~is_empty, -torch.inf)
    return (scores.softmax(-1).masked_fill(is_empty, 0) * kept) @ value


def _kept(shape: Any, rule: Any, earlier: int = 0) -> Any:
    """What the kernels keep: each row of scores begins with a new block of 64 numbers."""
    *rows, keys = shape
    wide = torch.Size((*rows, -(-keys // 64) * 64))
    return (
        dropout_operator.drop(torch.ones(earlier + wide.numel()), rule)[earlier:].view(wide)[..., :keys].double()
    )


def layers_of_encoders() -> None:
    for rule, dtype in itertools.product((RULE, None), (FP32, BF16)):
        kept = dropout_operator.drop(torch.ones(37, 33), rule).double() if rule else 1.0
        norm = torch.nn.LayerNorm(33, eps=1e-6)

        def summed(added: Any, stream: Any, *weights: Any, rule: Any = rule, norm: Any = norm) -> Any:
            norm.weight, norm.bias = map(torch.nn.Parameter, weights)
            del norm._parameters["weight"], norm._parameters["bias"]
            norm.weight, norm.bias = weights
            return encoder.normed_sum(added, stream, rule, norm, FP32)

        def exact(added: Any, stream: Any, *weights: Any, kept: Any = kept) -> Any:
            return functional.layer_norm(added * kept + stream, (33,), *weights, 1e-6)

        check(summed, exact, values(37, 33, dtype=dtype), values(37, 33), values(33), values(33),
              tolerance=2e-5 if dtype is FP32 else 2e-2)  # fmt: skip
    check(encoder.gelu, functional.gelu, values(37, 33, dtype=BF16), tolerance=2e-2)

    def squares(stream: Any) -> Any:
        return tuple(one.square() for one in encoder.branches(stream, 2))

    check(squares, lambda stream: (stream.square(),) * 2, values(37, 33), tolerance=2e-2)


def layers_of_decoders() -> None:
    angles = torch.randn(1, 7, 8)
    cosines, sines = (torch.cat((one, one), -1) for one in (angles.cos(), angles.sin()))
    for dtype in (FP32, BF16):
        tolerance = 2e-5 if dtype is FP32 else 3e-2

        def normed(stream: Any, weight: Any, added: Any = None, dtype: Any = dtype) -> Any:
            return decoder.norm(stream, added, weight, 1e-6, dtype)

        def exact(stream: Any, weight: Any, added: Any = 0) -> Any:
            total = stream + added
            return total, total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

        stream, added, weight = values(37, 33, dtype=dtype), values(37, 33, dtype=dtype), values(33)
        check(normed, exact, stream, weight, tolerance=tolerance)
        check(normed, exact, stream, weight, added, tolerance=tolerance)
        check(decoder.gated, lambda gate, up: functional.silu(gate) * up, stream, added, tolerance=tolerance)

        def added_squares(stream: Any, added: Any) -> Any:
            return decoder.add(stream, added).square()

        check(added_squares, lambda one, other: (one + other).square(), stream, added, tolerance=tolerance)

        def rotated_squares(states: Any, dtype: Any = dtype) -> Any:
            return decoder.rotated(states, cosines, sines, dtype).square()

        def exact_rotated(states: Any) -> Any:
            first, second = states.chunk(2, -1)
            return (states * cosines.double() + torch.cat((-second, first), -1) * sines.double()).square()

        check(rotated_squares, exact_rotated, values(2, 3, 7, 16, dtype=dtype), tolerance=tolerance)


def adapters() -> None:
    weight = torch.randn(33, 48)
    for dtype, has_dropped in itertools.product((FP32, BF16), (False, True)):
        kept = dropout_operator.drop(torch.ones(37, 48), RULE) if has_dropped else None

        def adapted(states: Any, down: Any, up: Any, dtype: Any = dtype, kept: Any = kept) -> Any:
            dropped = None if kept is None else states * kept.to(dtype)
            return adapted_linear(states, weight, None, down, up, 0.7, dtype, dropped).square()

        def exact(states: Any, down: Any, up: Any, kept: Any = kept) -> Any:
            dropped = states if kept is None else states * kept.double()
            return (states @ weight.double().t() + 0.7 * dropped @ down.t() @ up.t()).square()

        inputs = values(37, 48, dtype=dtype), values(4, 48), values(33, 4)
        check(adapted, exact, *inputs, tolerance=2e-5 if dtype is FP32 else 6e-2)


def output_layers() -> None:
    labels = torch.randint(0, 20, (2, 9))
    labels[:, ::3] = -100
    layer = torch.nn.Linear(16, 20)

    def loss(states: Any, weight: Any, bias: Any) -> Any:
        layer._parameters.clear()
        layer.weight, layer.bias = weight, bias
        with output_layer.OutputLayer(layer, True).labelled(labels):
            return layer(states)[:, 0].sum()

    def exact(states: Any, weight: Any, bias: Any) -> Any:
        scores = functional.linear(states[:, :-1], weight, bias)
        return functional.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")

    check(loss, exact, values(2, 9, 16), values(20, 16), values(20))


def complete_models() -> None:
    """A penalty on the gradient of the embeddings, as torch's own operators compute it."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    for name in ("bert", "llama", "adapted"):
        if name == "bert":
            model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **sizes))
        else:
            model = decoder_models.model_of("Llama", name == "adapted")
        model.set_attn_implementation("eager")  # torch's fused kernel without dropout has no second derivatives
        ids = torch.randint(0, 50, (2, 23))
        found = []
        for wide in (False, True):
            with decoder_models.torchs_own() if wide else contextlib.nullcontext():
                found.append(_penalty(model.double() if wide else model.eval(), ids))
        differences = [
            (ours.double() - torchs).norm() / torchs.norm() for ours, torchs in zip(*found, strict=True)
        ]
        assert max(differences) < 0.1, (name, differences)


def _penalty(model: Any, ids: Any) -> Any:
    model.zero_grad()
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    with torch.autocast("cpu", dtype=BF16, enabled=embedded.dtype is FP32):
        loss = model(inputs_embeds=embedded, labels=ids).loss
        (first,) = torch.autograd.grad(loss, embedded, create_graph=True)
        (loss + 100 * first.square().sum()).backward()
    weights = [one.grad for one in model.parameters() if one.grad is not None]
    return [torch.cat([one.flatten() for one in weights])]


def several_gradients_at_once() -> None:
    model = decoder_models.model_of("Llama", adapter=True)
    with torch.autocast("cpu", dtype=BF16):
        states = model(input_ids=torch.arange(9)[None], output_hidden_states=True).hidden_states
    wide = torch.randn(2, 2, 16, 16).requires_grad_()
    weights = [one for one in model.parameters() if one.requires_grad]
    for found, inputs in (
        (functional.scaled_dot_product_attention(wide, wide, wide, dropout_p=0.2), [wide]),
        (states[-1], weights),
    ):
        outers = torch.randn(3, *found.shape).to(found.dtype)
        options = {"retain_graph": True, "allow_unused": True}
        together = torch.autograd.grad(found, inputs, outers, is_grads_batched=True, **options)
        for index, outer in enumerate(outers):
            for all_of, one in zip(together, torch.autograd.grad(found, inputs, outer, **options), strict=True):
                # In bf16, sums of few terms differ by several roundings.
                assert one is None or (all_of[index] - one).norm() <= 5e-2 * one.norm()


def main() -> None:
    for name in (
        attention_with_masks,
        attention_of_rows_end_to_end,
        layers_of_encoders,
        layers_of_decoders,
        adapters,
        output_layers,
        complete_models,
        several_gradients_at_once,
    ):
        torch.manual_seed(1)
        name()
        print(name.__name__, flush=True)


if __name__ == "__main__":
    main()
