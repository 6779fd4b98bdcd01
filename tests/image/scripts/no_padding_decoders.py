"""Checks of decoders without padding and of packed rows: the same losses and gradients as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import peft
import torch
import trained
import transformers
from torch._subclasses import FakeTensorMode

from cpu_train_stack.operators import unpadded
from cpu_train_stack.speed import joining, no_padding, padding

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "attention_multiplier": 0.3,
    "no_rope_layer_interval": 2,
}
FAMILIES = ("Gemma", "Granite", "Llama", "Mistral", "Olmo2", "Phi3", "Qwen2", "Qwen3", "SmolLM3")
LENGTHS = torch.tensor([9, 1, 17, 4, 12])
WIDTH = 20
IGNORED = -100

NOTES: list[str] = []
USE = joining.Use(NOTES.append)


def model(prefix: str = "Llama", head: str = "ForCausalLM", **changes: Any) -> Any:
    kind = getattr(transformers, f"{prefix}Config")
    known = {*vars(kind()), "num_labels"}
    values = {"attention_dropout": 0.0, "sliding_window": None, "use_cache": True, **SIZES, **changes}
    torch.manual_seed(1)
    config = kind(**{name: value for name, value in values.items() if name in known})
    return getattr(transformers, f"{prefix}{head}")(config).train()


def padded_batch(lengths: torch.Tensor = LENGTHS, seed: int = 2) -> dict[str, Any]:
    torch.manual_seed(seed)
    mask = (torch.arange(WIDTH) < lengths[:, None]).long()
    ids = torch.randint(4, SIZES["vocab_size"], mask.shape) * mask + (1 - mask)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}


def packed_batch() -> dict[str, Any]:
    """Two sequences of several rows; the second one ends with padding, whose positions are 0."""
    torch.manual_seed(3)
    rows = [[5, 1, 14], [11, 3]]
    positions = torch.zeros(2, WIDTH, dtype=torch.long)
    for sequence, lengths in zip(positions, rows, strict=True):
        values = torch.cat([torch.arange(length) for length in lengths])
        sequence[: len(values)] = values
    ids = torch.randint(4, SIZES["vocab_size"], positions.shape)
    labels = ids.masked_fill(positions == 0, IGNORED)
    return {"input_ids": ids, "position_ids": positions, "labels": labels, "use_cache": False}


def compare(made: Any, inputs: dict[str, Any], is_joined: bool = True, limit: float = 2e-5) -> None:
    """The same loss and gradients as without this adaptation, and attention of joined rows only in one of them."""
    with mock.patch.object(joining, "is_compiling", return_value=True):
        loss, expected = trained.gradients(made, inputs)
    with mock.patch.object(unpadded, "layout_in", wraps=unpadded.layout_in) as read:
        other, found = trained.gradients(made, inputs)
    layouts = [unpadded.layout_in(*call.args) for call in read.call_args_list]
    assert any(layout is not None for layout in layouts) is is_joined, NOTES
    assert abs(other - loss) <= limit * abs(loss), (other, loss)
    assert trained.distance(found, expected) <= limit, trained.distance(found, expected)


def padded_rows_of_all_families_have_the_same_gradients() -> None:
    for prefix in FAMILIES:
        before = USE.skipped
        compare(model(prefix), padded_batch())
        assert USE.skipped == before + 5 * WIDTH - int(LENGTHS.sum())


def padded_rows_have_the_same_gradients_in_twenty_steps() -> None:
    lengths, before = torch.randint(1, WIDTH - 2, (trained.STEPS, len(LENGTHS))), USE.skipped
    batches = [padded_batch(each, seed) for seed, each in enumerate(lengths)]
    trained.check_training(model(), batches, lambda: mock.patch.object(joining, "is_compiling", return_value=True))
    assert USE.skipped - before == trained.STEPS * WIDTH * len(LENGTHS) - int(lengths.sum())


def packed_rows_of_all_families_have_the_same_gradients() -> None:
    for prefix in FAMILIES:
        compare(model(prefix), packed_batch())


def attention_in_padded_groups_gives_the_same() -> None:
    with trained.in_groups():
        for inputs in (padded_batch(), packed_batch()):
            compare(model(), inputs)


def recomputed_layers_have_the_same_gradients() -> None:
    for reentrant in (False, True):
        for inputs in (padded_batch(), packed_batch()):
            made = model()
            made.gradient_checkpointing_enable({"use_reentrant": reentrant})
            compare(made, inputs)


def adapters_have_the_same_gradients() -> None:
    for inputs in (padded_batch(), packed_batch()):
        made = peft.get_peft_model(model("Qwen2"), peft.LoraConfig(target_modules="all-linear")).train()
        made.enable_input_require_grads()
        made.gradient_checkpointing_enable({"use_reentrant": True})
        compare(made, inputs)


def scores_are_the_same_at_tokens_and_keep_their_shape() -> None:
    made, inputs = model().eval(), padded_batch()
    with torch.no_grad():
        found = made(**inputs).logits
        with mock.patch.object(joining, "is_compiling", return_value=True):
            expected = made(**inputs).logits
    is_real = inputs["attention_mask"] == 1
    assert found.shape == expected.shape
    torch.testing.assert_close(found[is_real], expected[is_real], rtol=1e-4, atol=1e-5)


def a_class_of_each_row_has_the_same_gradients() -> None:
    inputs = padded_batch()
    compare(model(head="ForSequenceClassification", num_labels=3), {**inputs, "labels": LENGTHS % 3})


def in_bf16_the_kernel_computes_rows_within_rounding() -> None:
    for inputs in (padded_batch(), packed_batch()):
        made = model(initializer_range=0.1)
        exact = trained.gradients(made, inputs)[1]
        with torch.autocast("cpu", torch.bfloat16):
            found = trained.gradients(made, inputs)[1]
            with mock.patch.object(joining, "is_compiling", return_value=True):
                others = trained.gradients(made, inputs)[1]
        assert trained.distance(found, exact) < 2 * trained.distance(others, exact)


def with_setting(name: str, value: object) -> Any:
    made = model()
    setattr(made.config, name, value)
    return made


def with_hook() -> Any:
    """A model whose loss depends on which tokens its first layer gets together."""
    made = model()
    made.model.layers[0].register_forward_pre_hook(lambda _layer, given: (given[0] - given[0].mean(1, True),))
    return made


def what_joined_rows_cannot_give_is_computed_as_before() -> None:
    left = {name: value.flip(1) for name, value in padded_batch().items()}
    cases: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
        "padding on the left": (model, left),
        "a cache": (model, {**padded_batch(), "use_cache": True}),
        "other labels of padding": (model, {**padded_batch(), "labels": padded_batch()["input_ids"]}),
        "a window": (lambda: model("Mistral", sliding_window=8), padded_batch()),
        "packed rows that a cache mixes": (model, {**packed_batch(), "use_cache": True}),
        "a packed window": (lambda: model("Mistral", sliding_window=8), packed_batch()),
        "packed rows of another attention": (
            lambda: with_setting("_attn_implementation", "eager"),
            packed_batch(),
        ),
        "packed rows of all states": (lambda: with_setting("output_hidden_states", True), packed_batch()),
        "packed rows of a layer with a hook": (with_hook, packed_batch()),
        "full rows": (model, {"input_ids": padded_batch()["input_ids"], "labels": padded_batch()["input_ids"]}),
    }
    for name, (make, inputs) in cases.items():
        try:
            compare(make(), inputs, is_joined=False)
        except AssertionError as error:
            raise AssertionError(name) from error
    compare(model("Mistral", sliding_window=WIDTH), padded_batch())


def evaluation_keeps_the_cache() -> None:
    made = model().eval()
    inputs = {name: value for name, value in padded_batch().items() if name != "labels"}
    assert made(**inputs).past_key_values is not None
    assert made.generate(**{name: value[2:3, :9] for name, value in inputs.items()}, max_new_tokens=3).shape[1] > 9


def tensors_without_values_are_left_to_the_model() -> None:
    with FakeTensorMode():
        inputs = packed_batch()
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        assert model()(**inputs).logits.shape == (*inputs["input_ids"].shape, SIZES["vocab_size"])


no_padding.install(USE)
assert [family.lower() for family in FAMILIES] == [*padding.DECODERS]
for check in (
    padded_rows_of_all_families_have_the_same_gradients,
    padded_rows_have_the_same_gradients_in_twenty_steps,
    packed_rows_of_all_families_have_the_same_gradients,
    attention_in_padded_groups_gives_the_same,
    recomputed_layers_have_the_same_gradients,
    adapters_have_the_same_gradients,
    scores_are_the_same_at_tokens_and_keep_their_shape,
    a_class_of_each_row_has_the_same_gradients,
    in_bf16_the_kernel_computes_rows_within_rounding,
    what_joined_rows_cannot_give_is_computed_as_before,
    evaluation_keeps_the_cache,
    tensors_without_values_are_left_to_the_model,
):
    check()
    print(check.__name__)
