"""Checks of complete decoders, for decoder_layers.py: losses, gradients, and what autograd keeps."""

from __future__ import annotations

import contextlib
import copy
import importlib
import statistics
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import kept_tensors
import peft
import torch
import transformers

from cpu_train_stack.operators import decoder, numbers
from cpu_train_stack.speed import decoder_layers
from cpu_train_stack.speed import lora as adapted

BF16, FP32 = torch.bfloat16, torch.float32
_KERNELS = ("norm", "gated", "add", "rotated")
# The kernels that compute each family. Gemma has GELU instead of SwiGLU, Phi-3 one product for both of its parts,
# and OLMo2 another order of norms and sums.
FAMILIES = {
    "Llama": _KERNELS,
    "Mistral": _KERNELS,
    "Qwen2": _KERNELS,
    "Qwen3": _KERNELS,
    "SmolLM3": _KERNELS,
    "Granite": _KERNELS,
    "Gemma": ("norm", "add", "rotated"),
    "Phi3": ("norm", "add", "rotated"),
    "Olmo2": ("norm", "gated", "rotated"),
}


def model_of(family: str, adapter: bool = False) -> Any:
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    others = {"pad_token_id": 0, "residual_multiplier": 0.6, "no_rope_layer_interval": 2, "resid_pdrop": 0.0}
    config = getattr(transformers, f"{family}Config")
    known = {name: value for name, value in others.items() if name in vars(config())}
    own = config(**sizes, **known, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    model = getattr(transformers, f"{family}ForCausalLM")(own)
    for name, weight in model.named_parameters():
        if "norm" in name:  # a new model has ones, or zeros
            weight.data.add_(torch.randn_like(weight) * 0.2)
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
    """Complete models, against the same in double precision. Under autocast, torch's own is as far away.

    Rounding grows in models with random adapters, in some of them much more than in others: in torch's, too.
    """
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for family in [*FAMILIES] * 3:
        batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
        for adapter in (False, True):
            model = model_of(family, adapter)
            expected, wanted = gradients(copy.deepcopy(model).double(), batch, autocast=False)
            for autocast in (False, True):
                calls = counted()
                loss, found = gradients(model, batch, autocast)
                assert {name for name, count in calls.items() if count} == {*FAMILIES[family]}, (family, calls)
                assert abs(loss - expected) < (2e-2 if autocast else 1e-6) * expected
                distances = distances_of(found, wanted)
                assert max(distances) < (1.0 if autocast else 1e-4), (family, distances)
            with torchs_own():
                torchs = distances_of(gradients(model, batch, autocast=True)[1], wanted)
            ratios[adapter].append(sum(distances) / sum(torchs))
    assert statistics.geometric_mean(ratios[False]) < 1.05, ratios
    assert statistics.geometric_mean(ratios[True]) < 1.3, ratios


def models_with_narrow_weights() -> None:
    """Complete models with weights in bf16. Their states have the same dtypes as those of torch."""
    for family in FAMILIES:
        batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
        model = model_of(family).to(BF16)
        _expected, wanted = gradients(copy.deepcopy(model).double(), batch, autocast=False)
        distances, dtypes = [], []
        for kernels in (contextlib.nullcontext(), torchs_own()):
            with kernels:
                distances.append(sum(distances_of(gradients(model, batch, autocast=False)[1], wanted)))
                found = model(**batch, output_hidden_states=True)
            dtypes.append([one.dtype for one in (*found.hidden_states, found.logits)])
        assert dtypes[0] == dtypes[1], (family, dtypes)
        assert distances[0] < 1.2 * distances[1], (family, distances)


def mixed_dtypes() -> None:
    """Norms and rotary embeddings of states in bf16 with weights or angles in fp32: torch's dtypes and numbers."""
    for family in FAMILIES:
        module = importlib.import_module(model_of(family).__module__)
        kind, rotary = getattr(module, f"{family}RMSNorm"), module.apply_rotary_pos_emb
        norm, states = kind(16), torch.randn(2, 2, 5, 16).to(BF16)
        norm.weight.data = torch.randn(16)
        angles = torch.randn(2, 2, 5, 16)
        for function, own, given in (
            (norm, kind.forward.__wrapped__, (norm, states)),
            (rotary, rotary.__wrapped__, (states, states + 1, *angles)),
        ):
            found = function(*(given[1:] if function is norm else given))
            torch.testing.assert_close(found, own(*given), rtol=2e-2, atol=5e-2)


def models_of_no_table_are_changed_too() -> None:
    """Whatever the script's settings are when it imports the model."""
    torch.set_default_dtype(BF16)
    try:
        with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", dtype=BF16):
            module = importlib.import_module("transformers.models.qwen3_moe.modeling_qwen3_moe")
    finally:
        torch.set_default_dtype(FP32)
    for name in ("RMSNorm", "DecoderLayer", "MLP"):
        assert hasattr(getattr(module, f"Qwen3Moe{name}").forward, "__wrapped__"), name
    assert decoder_layers.NORMS[module.Qwen3MoeRMSNorm] == decoder_layers.NormRule("variance_epsilon", 0.0, False)
    config = transformers.Qwen3MoeConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_experts=4,
        num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    model, calls = module.Qwen3MoeForCausalLM(config), counted()
    batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
    found = gradients(model, batch, autocast=False)[1]
    assert all(calls[name] for name in ("norm", "add", "rotated")), calls
    with torchs_own():
        assert max(distances_of(found, gradients(model, batch, autocast=False)[1])) < 1e-4
    dtypes = []  # experts compute in the dtype that they get
    model.model.layers[0].mlp.register_forward_hook(lambda _module, given, _result: dtypes.append(given[0].dtype))
    gradients(model, batch, autocast=True)
    with torchs_own():
        gradients(model, batch, autocast=True)
    assert dtypes == [FP32, FP32]


def other_layers_are_left_alone() -> None:
    """A class with a known name that computes something else: not a part of the formula is missing."""

    class OtherRMSNorm(torch.nn.Module):
        def __init__(self, size: int, eps: float = 1e-6) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(size)), eps

        def forward(self, states: Any) -> Any:
            centred = states - states.mean(-1, keepdim=True)
            return self.weight * centred * (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()

    class OptionalRMSNorm(torch.nn.Module):
        def __init__(self, size: int, eps: float = 1e-6, with_scale: bool = True) -> None:
            super().__init__()
            self.eps = eps
            if with_scale:
                self.weight = torch.nn.Parameter(torch.ones(size))

        def forward(self, states: Any) -> Any:
            normed = states * (states.square().mean(-1, keepdim=True) + self.eps).rsqrt()
            return normed * self.weight if hasattr(self, "weight") else normed

    class OtherMLP(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return self.down_proj(self.act_fn(self.gate_proj(x)) * (self.up_proj(x) + 1))

    class TrainingMLP(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x = 2 * x if self.training else x
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    class OtherDecoderLayer(torch.nn.Module):
        def forward(self, states: Any) -> Any:
            added = self.self_attn(hidden_states=self.input_layernorm(states))[0]
            return states + added + self.mlp(self.post_attention_layernorm(states))

    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        turned = [one.roll(1, -1) * sin.unsqueeze(unsqueeze_dim) for one in (q, k)]
        return q * cos.unsqueeze(1) + turned[0], k * cos.unsqueeze(1) + turned[1]

    kinds = (OtherRMSNorm, OptionalRMSNorm, OtherMLP, TrainingMLP, OtherDecoderLayer)
    own = types.ModuleType(__name__)
    vars(own).update({kind.__name__: kind for kind in kinds}, apply_rotary_pos_emb=apply_rotary_pos_emb)
    before = [kind.forward for kind in kinds]
    assert decoder_layers.change(own) == []
    assert [kind.forward for kind in kinds] == before
    assert own.apply_rotary_pos_emb is apply_rotary_pos_emb


def a_subclass_of_a_norm_computes_its_own_formula() -> None:
    class OwnRMSNorm(transformers.models.gemma.modeling_gemma.GemmaRMSNorm):
        def _norm(self, x: Any) -> Any:
            return 2 * x

    assert torch.equal(OwnRMSNorm(32)(torch.ones(3, 32)), torch.full((3, 32), 2.0))


def distances_of(found: dict[str, Any], wanted: dict[str, Any]) -> list[float]:
    assert found.keys() == wanted.keys()
    return [float((found[name] - one).norm() / one.norm()) for name, one in wanted.items()]


@contextlib.contextmanager
def torchs_own() -> Iterator[None]:
    """Nothing is computed by the kernels inside the block."""
    no = mock.Mock(return_value=False)
    with mock.patch.object(numbers, "computable", no), mock.patch.object(adapted, "are_plain", no):
        yield


_ORIGINALS = {name: getattr(decoder, name) for name in _KERNELS}


def counted() -> dict[str, int]:
    """How often each part is computed from now on."""
    calls = dict.fromkeys(_KERNELS, 0)

    def counting(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return _ORIGINALS[name](*args, **options)

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
        assert calls["gated"] == (4 if "gated" in FAMILIES[family] else 0), calls  # two layers, twice
        assert recomputed_loss == loss
        assert max(distances_of(found, wanted)) < 1e-5


def kept_parts() -> None:
    """Autograd keeps neither what RMSNorm returned, nor what SwiGLU did, but for the last norm.

    With LoRA, it keeps what the first norm returned: the embeddings have no gradient, so nothing else is kept.
    """
    batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
    for autocast in (False, True):
        for adapter in (False, True):
            model = model_of("Qwen2", adapter)

            def forward(model: Any = model, autocast: bool = autocast) -> Any:
                with torch.autocast("cpu", dtype=BF16, enabled=autocast):
                    return model(**batch).loss

            parameters = [one for one in model.parameters() if one.requires_grad]
            kept_tensors.check(decoder, forward, parameters, fewer=5 if adapter else 6)


def hooked_models() -> None:
    """Hooks of the norms are called, and see what they saw before."""
    batch = {"input_ids": torch.randint(0, 50, (2, 23)), "labels": torch.randint(0, 50, (2, 23))}
    model = model_of("Llama")
    expected, _ = gradients(model, batch, autocast=False)
    seen: list[Any] = []
    model.model.layers[0].input_layernorm.register_forward_hook(lambda *found: seen.append(found[2]))
    loss, _ = gradients(model, batch, autocast=False)
    assert len(seen) == 1
    torch.testing.assert_close(loss, expected)


def _noting(dtypes: set[Any], module: Any) -> Callable[..., None]:
    """A hook that notes the dtype of a module's weight."""
    return lambda *_: dtypes.add(module.weight.dtype)


def narrowed_weights() -> None:
    """A Trainer stores frozen weights that are exact in bf16 in bf16 while it trains."""
    for exact in (True, False):
        torch.manual_seed(1)
        model = model_of("Qwen2")
        if exact:
            model = model.to(BF16).to(FP32)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
        base = model.get_base_model().model.layers[0].mlp.up_proj.base_layer
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        embedding = model.get_input_embeddings()
        dtypes: set[Any] = set()
        rows = [{"input_ids": list(range(9)), "labels": list(range(9))}] * 8
        arguments = transformers.TrainingArguments(
            "/tmp/narrowed", max_steps=3, bf16=True, report_to=[], disable_tqdm=True, save_strategy="no",
            logging_steps=1, use_cpu=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        layer = model.get_base_model().model.layers[0]
        layer.register_forward_pre_hook(_noting(dtypes, base))
        model.lm_head.register_forward_pre_hook(_noting(dtypes, embedding))
        trainer.train()
        assert dtypes == {BF16 if exact else FP32}, dtypes
        assert base.weight.dtype == embedding.weight.dtype == FP32
        for name, one in model.named_parameters():
            assert one.requires_grad or torch.equal(one, before[name]), name
        with torch.no_grad():  # without autocast
            model(input_ids=torch.arange(9)[None])


class _Answers(transformers.TrainerCallback):
    """Computes scores after the first step, without autocast: with the adapter, without it, and merged."""

    def __init__(self, base: Any) -> None:
        self.errors: list[float] = []
        self._base = base

    def on_step_end(self, _args: Any, state: Any, _control: Any, model: Any = None, **_options: Any) -> None:
        if state.global_step > 1:
            return
        ids, torchs = torch.arange(5)[None], copy.deepcopy(self._base)
        torchs.load_state_dict({name: one.float() for name, one in model.state_dict().items()})
        model.eval()
        with torch.no_grad():
            for merged, off in ((False, False), (False, True), (True, False)):
                with torchs_own():
                    expected = _scores(torchs, ids, merged, off)
                found = _scores(model, ids, merged, off)
                self.errors.append(float((found - expected).abs().max() / expected.abs().max()))
        model.generate(input_ids=ids, max_new_tokens=3, do_sample=False)
        model.train()


def _scores(model: Any, ids: Any, merged: bool, off: bool) -> Any:
    if merged:
        model.merge_adapter()
    with model.disable_adapter() if off else contextlib.nullcontext():
        scores = model.get_base_model()(input_ids=ids).logits
    if merged:
        model.unmerge_adapter()
    return scores


def callbacks_that_generate() -> None:
    """Outside of autocast, weights that are stored in bf16 are still those of a model in fp32."""
    for names in ("all-linear", ["q_proj", "lm_head"], ["q_proj", "embed_tokens"]):
        torch.manual_seed(1)
        lora = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=names, init_lora_weights=False)
        model = peft.get_peft_model(model_of("Qwen2").to(BF16).to(FP32), lora)
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        answers = _Answers(copy.deepcopy(model))
        arguments = transformers.TrainingArguments(
            "/tmp/answers",
            max_steps=2,
            bf16=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            use_cpu=True,
        )
        rows = [{"input_ids": list(range(9)), "labels": list(range(9))}] * 8
        transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[answers]).train()
        assert len(answers.errors) == 3
        assert max(answers.errors) < 1e-4, (names, answers.errors)
        for name, one in model.named_parameters():
            assert one.requires_grad or torch.allclose(one, before[name], rtol=0, atol=1e-5), name


CHECKS = (
    models,
    models_with_narrow_weights,
    mixed_dtypes,
    models_of_no_table_are_changed_too,
    other_layers_are_left_alone,
    a_subclass_of_a_norm_computes_its_own_formula,
    recomputed_models,
    kept_parts,
    hooked_models,
    narrowed_weights,
    callbacks_that_generate,
)
