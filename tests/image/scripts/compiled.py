"""torch.compile traces this project's operators: opcheck of each, and models in one graph that computes the same.

Graphs are traced for autograd and then run operator by operator: the image has no compiler.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import decoder_models
import encoder_models
import torch
import transformers
from rounding import BF16, FP32, values
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

from cpu_train_stack.adapt import lora
from cpu_train_stack.operators import decoder, encoder_operators, output_layer


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


def models() -> None:
    """Each in one graph, which holds the operators and has the gradients of the uncompiled model."""
    bert = encoder_models.model_of().eval()
    adapted, narrowed = (decoder_models.model_of("llama", adapter=True) for _ in range(2))
    for weight in narrowed.parameters():
        weight.data = weight.data.bfloat16().float()
    cases = (
        (bert, encoder_models.batch_of(), {"normed_sum", "gelu"}),
        (decoder_models.model_of("llama"), None, {"norm", "gate", "rotation"}),
        (adapted, None, {"norm", "gate", "rotation"}),
        (narrowed, None, {"norm", "gate", "rotation"}),
    )
    for (model, given, names), autocast in itertools.product(cases, (False, True)):
        if model is bert and not autocast:
            continue  # its parts in float32 are those of a decoder
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
    model = decoder_models.model_of("llama")
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
            # While compiling, attention in bf16 is torch's own, which rounds other values than the kernel.
            assert (one - other).norm() < 0.05 * other.norm()
    assert counter.frame_count == 1
    with torch.no_grad(), output.labelled(_labels(ids)):
        torch.testing.assert_close(compiled(input_ids=ids)["logits"], model(input_ids=ids)["logits"])


def trainers() -> None:
    """Compiled steps keep the output layer and the narrow weights, have the same losses, and are compiled once."""
    first = decoder_models.model_of("llama", adapter=True)
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
    for check in (operators, models, output_layers, trainers):
        torch.manual_seed(1)
        check()
        print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
