"""torch.compile traces this project's operators: opcheck of each, and models in one graph that computes the same.

Graphs are traced for autograd and then run operator by operator: the image has no compiler.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import decoder_models
import encoder_models
import torch
import transformers
from rounding import BF16, FP32, values
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx import GraphModule
from torch.library import opcheck
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from cpu_train_stack.operators import (
    attention,
    attention_bf16,
    attention_fp32,
    decoder,
    dropout,
    dropout_operator,
    encoder_operators,
    output_layer,
)
from cpu_train_stack.speed import lora


def operators() -> None:
    """Schemas, fakes and derivatives of all operators; those of the backward passes are in their graphs."""
    for dtype, added in ((FP32, FP32), (FP32, BF16), (BF16, BF16), (FP32, None)):
        other = None if added is None else values(3, 7, 33, dtype=added)
        opcheck(decoder.NORM.traced, (values(3, 7, 33, dtype=dtype), other, values(33), 1e-6, BF16))
    opcheck(decoder.GATE.traced, (values(3, 33), values(3, 33)))
    angles = torch.randn(1, 7, 16)
    opcheck(decoder.ROTATION.traced, (values(2, 3, 7, 16), angles, angles, BF16))
    seeds = ((None, 0), (torch.tensor(5), 20_000))
    for dtype, (seed, threshold), has_copy in itertools.product((FP32, BF16), seeds, (False, True)):
        given = values(3, 7, 33, dtype=dtype), values(3, 7, 33), values(33), values(33)
        opcheck(encoder_operators.SUM.traced, (*given, seed, threshold, 1e-6, has_copy))
    opcheck(encoder_operators.GELU.traced, (values(3, 33, dtype=BF16),))
    labels = _labels(torch.randint(0, 20, (2, 9)))
    for bias in (None, values(20)):
        parts = values(2, 9, 16), values(20, 16), bias
        opcheck(output_layer.LOSS.traced, (*parts, labels, FP32, [True, True, bias is not None]))
        fixed = [None if one is None else one.detach() for one in parts]
        opcheck(output_layer.LOSSES.traced, (*fixed, labels, BF16))


def operators_with_dropout() -> None:
    seed = torch.tensor(5)
    for dtype in (FP32, BF16):
        given = values(4, 3, 5, dtype=dtype).detach().transpose(0, 2).requires_grad_()
        for strides in (None, torch.empty_like(given).stride()):
            opcheck(dropout_operator.DROPOUT.traced, (given, seed, 20_000, strides))
    masks = (None, torch.rand(2, 1, 9, 12) < 0.7, torch.randn(1, 1, 9, 12))
    for mask, drawn in itertools.product(masks, ((None, 0), (seed, 9000))):
        parts = values(6, 9, 8), values(6, 12, 8), values(6, 12, 8)
        opcheck(attention_fp32.ATTENTION.traced, (*parts, mask, [2, 3], 0.3, *drawn))
        narrow = [values(2, heads, size, 8, dtype=BF16) for heads, size in ((3, 9), (1, 12), (1, 12))]
        opcheck(attention_bf16.FUSED.traced, (*narrow, mask, None, False, False, 0.3, *drawn, False))
    for dtype in (FP32, BF16):
        rows = [values(1, heads, 9, 8, dtype=dtype) for heads in (3, 1, 1)]
        how = torch.tensor([0, 4, 9]), False, True, 0.3, seed, 9000, False
        opcheck(attention_bf16.FUSED.traced, (*rows, None, *how))
    tiles = [values(1, 1, size, 8, dtype=BF16) for size in (3, 1030, 1030)]
    opcheck(attention_bf16.FUSED.traced, (*tiles, None, None, True, False, 0.3, seed, 9000, False))


def dropout_in_training() -> None:
    """Attention and dropout stay in the graphs of both passes, and drop other elements in each step."""
    mask, starts = torch.rand(2, 1, 40, 40) < 0.7, torch.tensor([0, 13, 40])

    def attended(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=0.25, **options)

    def by_torch(query: Any, key: Any, value: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return attended(query, key, value)

    def joined(query: Any, key: Any, value: Any) -> Any:
        return attention.joined(query, key, value, starts, True, 0.3, 0.25)

    def dropped(query: Any, *_others: Any) -> Any:
        return functional.dropout(query * 2, 0.25) * 3

    for dtype, (function, batches) in itertools.product(
        (FP32, BF16),
        (
            (attended, 2),
            (functools.partial(attended, is_causal=True), 2),
            (functools.partial(attended, attn_mask=mask), 2),
            (joined, 1),
            (dropped, 2),
            (by_torch, 2),
        ),
    ):
        fused = {"fused_attention", "fused_attention_gradients"}
        is_fused = dtype in attention._INSTALLED[0].plain  # by bf16 instructions
        names = fused if is_fused else {"attention", "attention_gradients"}
        names = {joined: fused, dropped: {"dropout"}, by_torch: {"dropout"}}.get(function, names)
        given = [values(batches, 2, 40, 8, dtype=dtype) for _ in range(3)]
        seen: set[str] = set()
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend=_noting(seen))
        results = [_derived(compiled, given) for _ in range(2)]
        assert names == seen, (function, dtype, seen)
        assert not torch.equal(results[0][0], results[1][0])
        if function is not by_torch:  # which draws each number apart
            with _seeded():
                torch._dynamo.reset()
                results = [_derived(one, given) for one in (function, compiled)]
            assert all(map(torch.equal, *results)), (function, dtype)


def _derived(function: Any, given: list[Any]) -> list[Any]:
    found = function(*given)
    return [found, *torch.autograd.grad(found.float().square().sum(), given, materialize_grads=True)]


@contextmanager
def _seeded() -> Iterator[None]:
    """Each operator has the same seed, eagerly and in a graph, where torch draws others."""

    def rule(p: float) -> Any:
        return dropout.Rule(torch.full((), 5), round(p * 65536))

    with patch.object(attention, "draw_rule", rule), patch.object(dropout_operator, "draw_rule", rule):
        yield


def _noting(seen: set[str]) -> Any:
    """A backend that adds the names of this project's operators in the graphs of both passes to `seen`."""

    def compiler(graph: GraphModule, _inputs: Any) -> Any:
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        seen.update(one._opname for one in targets if getattr(one, "namespace", "") == "cpu_train_stack")
        return make_boxed_func(graph)

    return aot_autograd(fw_compiler=compiler)


def exports() -> None:
    """Whoever records the model for another process gets torch's own operators."""
    layer = torch.nn.MultiheadAttention(16, 2, dropout=0.25, batch_first=True)
    states = torch.randn(2, 5, 16)
    for strict in (False, True):
        exported = torch.export.export(layer, (states, states, states), strict=strict).run_decompositions()
        assert not any(one in exported.graph_module.code for one in ("cpu_train_stack", "functorch"))
    drop = torch.nn.Dropout(0.25)
    assert "cpu_train_stack" not in torch.export.export(drop, (states,)).run_decompositions().graph_module.code
    for module, given in ((layer, (states, states, states)), (drop, (states,))):
        traced = str(torch.jit.trace(module, given, check_trace=False).inlined_graph)
        assert "cpu_train_stack" not in traced
        assert "aten::dropout" in traced or "aten::scaled_dot_product_attention" in traced


def models() -> None:
    """Each in one graph, which holds the operators and has the gradients of the uncompiled model."""
    bert = encoder_models.model_of().eval()
    adapted, narrowed = (decoder_models.model_of("Llama", adapter=True) for _ in range(2))
    for weight in narrowed.parameters():
        weight.data = weight.data.bfloat16().float()
    parts = {"norm", "gate", "rotation"}
    for model, given, names, autocast in (
        (bert, encoder_models.batch_of(), {"normed_sum", "gelu"}, True),
        (decoder_models.model_of("Llama"), None, parts, False),
        (adapted, None, parts, True),
        (narrowed, None, parts, True),
    ):
        ids = torch.randint(0, 50, (2, 9))
        batch = given or {"input_ids": ids, "labels": ids}
        with lora._narrow(model) if model is narrowed else torch.enable_grad():
            loss, expected = decoder_models.gradients(model, batch, autocast)
            seen: set[str] = set()
            compiled = _compiled(model, seen)
            model.zero_grad()
            with torch.autocast("cpu", dtype=BF16, enabled=autocast):
                found = compiled(**batch).loss
            found.backward()
            assert names <= seen, seen
            assert abs(found - loss) < (1e-2 if autocast else 1e-5) * loss, (found, loss)
            ours, wanted = (
                torch.cat([one.flatten() for one in gradients])
                for gradients in (
                    [one.grad for one in model.parameters() if one.grad is not None],
                    list(expected.values()),
                )
            )
            assert (ours - wanted).norm() < (0.05 if autocast else 1e-5) * wanted.norm()


def _compiled(model: Any, seen: set[str]) -> Any:
    """`seen`: gets the names of this project's operators in the graph."""

    def backend(graph: Any, inputs: Any) -> Any:
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        seen.update(one._opname for one in targets if getattr(one, "namespace", "") == "cpu_train_stack")
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend=backend)


def output_layers() -> None:
    """One graph for all steps, whatever the labels, with and without gradients."""
    model = decoder_models.model_of("Llama")
    output: Any = output_layer.output_layer_of(model, shift=True)
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for _ in range(3):
        ids, results = torch.randint(0, 50, (2, 9)), []
        for computed in (model, compiled):
            model.zero_grad()
            with torch.autocast("cpu", dtype=BF16), output.labelled(_labels(ids)):
                sums = computed(input_ids=ids)["logits"]
            (sums[:, 0].sum() / sums[:, 1].sum()).backward()
            results.append([sums, *(one.grad for one in model.parameters())])
        for one, other in zip(*results, strict=True):
            assert (one - other).norm() < 0.05 * other.norm()
    assert counter.frame_count == 1
    with torch.no_grad(), output.labelled(_labels(ids)):
        torch.testing.assert_close(compiled(input_ids=ids)["logits"], model(input_ids=ids)["logits"])


def trainers() -> None:
    """Compiled steps keep the output layer and the narrow weights, have the same losses, and are compiled once."""
    first = decoder_models.model_of("Llama", adapter=True)
    for weight in first.parameters():
        weight.data = weight.data.bfloat16().float()
    rows = [{"input_ids": ids, "labels": _labels(ids[None])[0]} for ids in torch.randint(0, 50, (16, 9))]
    losses: list[list[float]] = []
    kept: list[set[Any]] = []
    for options in ({}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        arguments = transformers.TrainingArguments(
            "/tmp/compiled", per_device_train_batch_size=4, max_steps=3, bf16=True, use_cpu=True, logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True, **options,
        )  # fmt: skip
        trainer = transformers.Trainer(copy.deepcopy(first), arguments, train_dataset=rows)
        trainer.add_callback(_Dtypes(kept))
        trainer.train()
        losses.append([one["loss"] for one in trainer.state.log_history if "loss" in one])
        assert trainer._cpu_train_stack_output[1] is not None
        assert BF16 in kept[-1]
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(options) // 2
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-3, atol=1e-3)


class _Dtypes(transformers.TrainerCallback):
    """Notes the dtypes of the model's weights during the training."""

    def __init__(self, kept: list[set[Any]]) -> None:
        self._kept = kept

    def on_step_end(self, _args: Any, _state: Any, _control: Any, model: Any = None, **_options: Any) -> None:
        self._kept.append({weight.dtype for weight in model.parameters()})


def _labels(ids: torch.Tensor) -> torch.Tensor:
    labels = ids.clone()
    labels[:, ::3] = output_layer.IGNORED
    return labels


def main() -> None:
    for check in (
        operators,
        operators_with_dropout,
        dropout_in_training,
        exports,
        models,
        output_layers,
        trainers,
    ):
        torch.manual_seed(1)
        check()
        print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
