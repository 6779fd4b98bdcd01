"""Checks of complete encoders, for encoder_layers.py: losses, gradients, and what is computed as before."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import kept_tensors
import peft
import torch
import transformers

from cpu_train_stack.operators import dropout, encoder

BF16, FP32 = torch.bfloat16, torch.float32
FAMILIES = ("Bert", "Camembert", "DistilBert", "Electra", "Roberta", "XLMRoberta")
SIZES = {
    "vocab_size": 50,
    "hidden_size": 48,
    "dim": 48,
    "embedding_size": 48,
    "num_hidden_layers": 3,
    "n_layers": 3,
    "num_attention_heads": 3,
    "n_heads": 3,
    "intermediate_size": 80,
    "hidden_dim": 80,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "initializer_range": 0.1,
}
RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


def model_of(family: str = "Bert", rate: float = 0.0, **changes: Any) -> Any:
    config = getattr(transformers, f"{family}Config")
    known = vars(config())  # an unknown name would be stored too
    sizes = {name: value for name, value in {**SIZES, **dict.fromkeys(RATES, rate)}.items() if name in known}
    made = getattr(transformers, f"{family}ForTokenClassification")(
        config(**{**sizes, "num_labels": 5, **changes})
    )
    for weight in made.parameters():  # a new model has no biases
        if weight.dim() == 1:
            weight.data.add_(torch.randn_like(weight) * 0.1)
    return made.train()


def batch_of() -> dict[str, Any]:
    ids = torch.randint(2, 50, (4, 23))
    mask = (torch.arange(23) < torch.tensor([[23], [5], [17], [9]])).long()
    labels = torch.randint(0, 5, ids.shape).masked_fill(mask == 0, -100)
    return {"input_ids": ids * mask + 1 - mask, "attention_mask": mask, "labels": labels}


def gradients(
    model: Any, batch: dict[str, Any], autocast: bool = True, seed: int = 3
) -> tuple[Any, dict[str, Any]]:
    model.zero_grad()
    torch.manual_seed(seed)
    with torch.autocast("cpu", dtype=BF16, enabled=autocast):
        loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def distance(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest of all tensors, relative to its size."""
    assert found.keys() == wanted.keys()
    return max(float((found[name] - one).norm() / one.norm()) for name, one in wanted.items() if _is_used(name))


def _is_used(name: str) -> bool:
    """Whether the loss depends on a weight: softmax does not depend on the biases of keys."""
    return not name.endswith(("key.bias", "k_lin.bias"))


@contextlib.contextmanager
def torchs_own() -> Iterator[None]:
    """Nothing is computed by the kernels inside the block."""
    with mock.patch("cpu_train_stack.operators.numbers.computable", return_value=False):
        yield


@contextlib.contextmanager
def counted(*expected: int) -> Iterator[None]:
    """Inside the block, the kernels compute as many sums, branches and activations."""
    names = ("normed_sum", "branches", "gelu")
    with contextlib.ExitStack() as stack:
        spies = (mock.patch.object(encoder, name, wraps=getattr(encoder, name)) for name in names)
        calls = [stack.enter_context(spy) for spy in spies]
        yield
        assert expected == tuple(call.call_count for call in calls), [call.call_count for call in calls]


def models() -> None:
    """Complete models, against the same in double precision. Under autocast, torch's own is as far away."""
    ours = torchs = 0.0
    for family in FAMILIES * 2:
        model, batch = model_of(family), batch_of()
        for mask in (None, batch["attention_mask"]):
            batch["attention_mask"] = mask
            loss, wanted = gradients(copy.deepcopy(model).double(), batch, autocast=False)
            with counted(6, 0, 0):
                plain_loss, plain = gradients(model, batch, autocast=False)
            assert abs(plain_loss - loss) < 1e-6 * loss
            assert distance(plain, wanted) < 1e-4
            with counted(6, 6, 3):
                found_loss, found = gradients(model, batch)
            assert abs(found_loss - loss) < 2e-2 * loss
            ours += distance(found, wanted)
            with torchs_own(), counted(0, 0, 0):
                torchs += distance(gradients(model, batch)[1], wanted)
            model.eval()
            with torch.inference_mode(), torch.autocast("cpu", dtype=BF16), counted(6, 6, 3):
                scores = model(**batch).logits
                with torchs_own():
                    expected = model(**batch).logits
            torch.testing.assert_close(scores, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))
            model.train()
    assert ours < 1.15 * torchs, (ours, torchs)


def dropped_models() -> None:
    """The same elements are dropped as without the adaptation."""
    for family in FAMILIES:
        model, batch = model_of(family, rate=0.2), batch_of()
        with torchs_own():
            loss, wanted = gradients(model, batch, autocast=False)
        assert gradients(model, batch, autocast=False, seed=4)[0] != loss
        found_loss, found = gradients(model, batch, autocast=False)
        torch.testing.assert_close(found_loss, loss)
        assert distance(found, wanted) < 1e-4
        with mock.patch.object(dropout, "is_installed", return_value=False):  # the modules drop
            found_loss, found = gradients(model, batch, autocast=False)
        torch.testing.assert_close(found_loss, loss)
        assert distance(found, wanted) < 1e-4


def recomputed_models() -> None:
    for family, reentrant in itertools.product(("Bert", "DistilBert"), (False, True)):
        model, batch = model_of(family, rate=0.2), batch_of()
        loss, wanted = gradients(model, batch)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        with counted(12, 12, 6):
            found_loss, found = gradients(model, batch)
        assert found_loss == loss
        assert distance(found, wanted) < 1e-5


def adapted_models() -> None:
    """With LoRA."""
    ours = torchs = 0.0
    families = {"Bert": ["query", "value", "dense"], "DistilBert": ["q_lin", "v_lin", "lin1"]}
    for family, targets in [*families.items()] * 4:
        lora = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
        model, batch = peft.get_peft_model(model_of(family), lora), batch_of()
        _, wanted = gradients(copy.deepcopy(model).double(), batch, autocast=False)
        with counted(6, 6, 3):
            ours += distance(gradients(model, batch)[1], wanted)
        with torchs_own():
            torchs += distance(gradients(model, batch)[1], wanted)
    assert ours < 1.15 * torchs, (ours, torchs)


def models_of_torch_jit() -> None:
    model, batch = model_of(), batch_of()
    with torchs_own():
        expected = model(batch["input_ids"])
    traced = torch.jit.trace(model.eval(), batch["input_ids"], strict=False)
    torch.testing.assert_close(traced(batch["input_ids"])["logits"], expected.logits)


def cached_models() -> None:
    """A decoder continues a text with its cache as it would without one."""
    model = transformers.BertLMHeadModel(model_of(is_decoder=True).config).eval()
    ids, options = torch.randint(2, 50, (4, 7)), {"return_dict_in_generate": True, "output_logits": True}
    with torch.inference_mode(), torch.autocast("cpu", dtype=BF16):
        out = model.generate(ids, max_new_tokens=2, do_sample=False, **options)
        expected = model(out.sequences[:, :-1], use_cache=False).logits[:, -2:].float()
    found = torch.stack(out.logits, dim=1)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def hooked_models() -> None:
    """Hooks are called, and see what they saw before."""
    model, batch = model_of(), batch_of()
    loss, _ = gradients(model, batch)
    layer = model.bert.encoder.layer[1]
    cases = (
        (layer.output.LayerNorm, FP32, (5, 6, 3)),
        (layer.output.dropout, BF16, (6, 6, 3)),
        (layer.attention.self.key, FP32, (6, 5, 3)),
        (layer.intermediate.intermediate_act_fn, BF16, (6, 6, 2)),
        (layer.attention.output, BF16, (6, 6, 3)),
    )
    for hooked, dtype, calls in cases:
        seen: list[Any] = []
        hook = hooked.register_forward_hook(lambda *found: seen.append(found[1][0].dtype))  # noqa: B023
        with counted(*calls):
            found_loss, _ = gradients(model, batch)
        hook.remove()
        assert seen == [dtype], (hooked, seen)
        torch.testing.assert_close(found_loss, loss, rtol=1e-2, atol=1e-2)


def kept_parts() -> None:
    """Autograd keeps neither the copies that a normed sum wrote, nor what GELU returned."""
    for family in ("Bert", "DistilBert"):
        model, batch = model_of(family, rate=0.1), batch_of()

        def forward(model: Any = model, batch: dict[str, Any] = batch) -> Any:
            with torch.autocast("cpu", dtype=BF16):
                return model(**batch).loss

        parameters = [one for name, one in model.named_parameters() if _is_used(name)]
        kept_tensors.check(encoder, forward, parameters, fewer=5 + 3)


def hidden_states() -> None:
    """Each has its complete gradient, also of the products that read its copy."""
    for family in ("Bert", "DistilBert"):
        model, batch = model_of(family), batch_of()
        found = _by_states(model, batch)
        with torchs_own():
            wanted = _by_states(model, batch)
        assert len(found) == len(wanted) == 4
        for one, other in zip(found, wanted, strict=True):
            assert float((one - other).norm() / other.norm()) < 0.03


def _by_states(model: Any, batch: dict[str, Any]) -> Any:
    with torch.autocast("cpu", dtype=BF16):
        out = model(**batch, output_hidden_states=True)
    return torch.autograd.grad(out.loss, out.hidden_states)


CHECKS = (
    models,
    dropped_models,
    recomputed_models,
    adapted_models,
    models_of_torch_jit,
    cached_models,
    hooked_models,
    kept_parts,
    hidden_states,
)
