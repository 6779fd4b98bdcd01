"""Checks of the output layer with its loss, against torch's scores of all tokens. Prints each check that held."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from cpu_train_stack.operators import output_layer
from cpu_train_stack.operators.output_layer import IGNORED, OutputLayer, is_last, output_layer_of
from cpu_train_stack.train.tasks.tokens import RowSums, TokenLoss

ROWS, TOKENS, FEATURES, WORDS = 3, 20, 16, 50
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": FEATURES,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def labels_of(share: float = 0.5) -> torch.Tensor:
    labels = torch.randint(0, WORDS, (ROWS, TOKENS))
    labels[torch.rand(labels.shape) > share] = IGNORED
    return labels


def layer_of(bias: bool, is_trained: bool) -> torch.nn.Linear:
    layer = torch.nn.Linear(FEATURES, WORDS, bias)
    return layer.requires_grad_(is_trained)


@contextmanager
def groups_of(tokens: int) -> Iterator[None]:
    """Also add gradients of the weight in parts of seven words."""
    originals = output_layer._BYTES, output_layer._PRODUCT_BYTES
    output_layer._BYTES, output_layer._PRODUCT_BYTES = 4 * WORDS * tokens, 4 * FEATURES * 7
    try:
        yield
    finally:
        output_layer._BYTES, output_layer._PRODUCT_BYTES = originals


def gradients(
    layer: torch.nn.Linear,
    states: torch.Tensor,
    labels: torch.Tensor,
    shift: bool,
    is_changed: bool,
    bf16: bool = False,
    tokens: int = 7,
) -> list[Any]:
    """The loss per token, of `tokens` on all ranks, and the gradients of states, weight and bias."""
    layer.zero_grad()
    given = states.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        if is_changed:
            changed = OutputLayer(layer, shift)
            with changed.labelled(labels):
                scores = layer(given)
            assert scores.dim() == 2
        else:
            scores = layer(given)
    loss = TokenLoss(shift)({"logits": scores}, labels, tokens)
    loss.backward()
    return [loss.detach(), given.grad, *(parameter.grad for parameter in layer.parameters())]


def same_loss_and_gradients() -> None:
    for bias in (True, False):
        for is_trained in (True, False):
            for shift in (True, False):
                for tokens in (1, 7, 1000):
                    layer, states, labels = (
                        layer_of(bias, is_trained),
                        torch.randn(ROWS, TOKENS, FEATURES),
                        labels_of(),
                    )
                    with groups_of(tokens):
                        found = gradients(layer, states, labels, shift, True)
                    expected = gradients(layer, states, labels, shift, False)
                    assert [one is None for one in found] == [one is None for one in expected]
                    for one, other in zip(found, expected, strict=True):
                        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def bf16_is_as_exact_as_torch() -> None:
    """With autocast, and with weights that are stored in bfloat16."""
    layer, states, labels = layer_of(True, True), torch.randn(ROWS, TOKENS, FEATURES), labels_of()
    states, layer.weight.data = states.bfloat16().float(), layer.weight.bfloat16().float()
    exact = gradients(layer, states, labels, True, False)
    stored = copy.deepcopy(layer).bfloat16()
    for used, given, autocast in ((layer, states, True), (stored, states.bfloat16(), False)):
        with groups_of(7):
            found = gradients(used, given, labels, True, True, autocast)
        torchs = gradients(used, given, labels, True, False, autocast)
        for one, its, other in zip(found, torchs, exact, strict=True):
            assert one.dtype == its.dtype
            assert (one - other).norm() <= 1.5 * (its - other).norm() + 1e-3 * other.norm()


def no_label_is_a_loss_of_zero() -> None:
    """On this rank, on all ranks, and where a model divides by the number of labels."""
    layer, states = layer_of(False, True), torch.randn(ROWS, TOKENS, FEATURES)
    for is_changed in (True, False):
        for tokens in (7, 0):
            found = gradients(layer, states, labels_of(0.0), True, is_changed, tokens=tokens)
            assert found[0] == 0
            assert not found[1].any()
            assert not found[2].any()
    layer.zero_grad()
    changed = OutputLayer(layer, True)
    with changed.labelled(labels_of(0.0)):
        (layer(states.requires_grad_())[:, 0].sum() / 0).backward()
    assert states.grad is not None
    assert layer.weight.grad is not None
    assert not states.grad.any()
    assert not layer.weight.grad.any()


def unlikely_labels_have_a_finite_loss() -> None:
    layer, states, labels = layer_of(False, True), torch.randn(ROWS, TOKENS, FEATURES) * 400, labels_of()
    found, expected = (gradients(layer, states, labels, True, is_changed) for is_changed in (True, False))
    assert expected[0] > 100
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def evaluation_has_the_sums_of_each_row() -> None:
    for model in (LlamaForCausalLM(LlamaConfig(**SMALL)), BertForMaskedLM(BertConfig(**SMALL))):
        shift = isinstance(model, LlamaForCausalLM)
        model.eval()
        ids, labels = torch.randint(0, WORDS, (ROWS, TOKENS)), labels_of()
        labels[1] = IGNORED
        with torch.no_grad(), groups_of(4):
            expected = RowSums(shift)(model(input_ids=ids).logits, labels)
            changed = output_layer_of(model, shift)
            assert changed is not None
            with changed.labelled(labels):
                found = RowSums(shift)(model(input_ids=ids).logits, labels)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            assert model(input_ids=ids).logits.shape == (ROWS, TOKENS, WORDS)


class Largest(TorchDispatchMode):
    """The most numbers in a tensor that an operator returns."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return found


def no_tensor_holds_the_scores_of_all_labels() -> None:
    layer, states, labels = torch.nn.Linear(4, WORDS), torch.randn(1, 500, 4), torch.randint(0, WORDS, (1, 500))
    with groups_of(50), Largest() as ours:
        gradients(layer, states, labels, True, True)
    with Largest() as torchs:
        gradients(layer, states, labels, True, False)
    assert ours.numbers <= 50 * WORDS
    assert torchs.numbers >= 499 * WORDS


def other_models_compute_their_scores() -> None:
    changes_scores = Gemma2ForCausalLM(
        Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=8, final_logit_softcapping=30.0)
    )
    output = output_layer_of(changes_scores, True)
    assert output is not None
    assert not is_last(output, changes_scores)
    assert "forward" not in vars(changes_scores.lm_head)
    from peft import LoraConfig, get_peft_model

    for modules, is_supported in ((["q_proj", "lm_head"], False), (["q_proj"], True)):
        adapted = get_peft_model(LlamaForCausalLM(LlamaConfig(**SMALL)), LoraConfig(target_modules=modules))
        adapted.train()
        output = output_layer_of(adapted, True)
        assert (output is not None) == is_supported
        assert output is None or is_last(output, adapted)
        assert adapted.training


def a_second_backward_finds_the_same() -> None:
    layer, states = layer_of(False, True), torch.randn(ROWS, TOKENS, FEATURES)
    changed = OutputLayer(layer, True)
    with changed.labelled(labels_of()):
        loss = layer(states)[:, 0].sum()
    first, second = (torch.autograd.grad(loss, layer.weight, retain_graph=True)[0].clone() for _ in range(2))
    assert torch.allclose(first, second, atol=1e-5)


def main() -> None:
    for check in (
        same_loss_and_gradients,
        bf16_is_as_exact_as_torch,
        no_label_is_a_loss_of_zero,
        unlikely_labels_have_a_finite_loss,
        evaluation_has_the_sums_of_each_row,
        no_tensor_holds_the_scores_of_all_labels,
        other_models_compute_their_scores,
        a_second_backward_finds_the_same,
    ):
        torch.manual_seed(3)
        check()
        print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
