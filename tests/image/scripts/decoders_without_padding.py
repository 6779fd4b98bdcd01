"""Checks of decoders without padding: losses and gradients are those with padding. A line for each that held."""

from __future__ import annotations

from typing import Any
from unittest import mock

import peft
import torch
import transformers

from entrypoints.adapt import no_padding
from entrypoints.operators import unpadded

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "initializer_range": 0.3,  # so that a wrong position shows in the loss
}
LENGTHS = torch.tensor([9, 1, 17, 4, 12])
WIDTH = 20

NOTES: list[str] = []
USE = no_padding.Use(NOTES.append)


def model(family: str, **changes: Any) -> Any:
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    return getattr(transformers, f"{family}ForCausalLM")(config)


def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    mask = (torch.arange(WIDTH) < LENGTHS[:, None]).long()
    ids = torch.randint(2, SIZES["vocab_size"], mask.shape) * mask
    labels = ids.masked_fill((mask == 0) | (torch.arange(WIDTH) < 2), -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gradients(made: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    made.zero_grad()
    loss = made(**inputs).loss
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in made.named_parameters() if one.grad is not None}


def same(made: Any, inputs: dict[str, Any] | None = None, skips: bool = True) -> None:
    """Loss and gradients are those with padding. `skips`: whether the padding is not computed."""
    inputs = inputs or batch()
    with mock.patch.object(unpadded, "layout_of", return_value=None):
        loss, expected = gradients(made, inputs)
    before = USE.skipped
    found_loss, found = gradients(made, inputs)
    assert (USE.skipped > before) == skips, NOTES
    torch.testing.assert_close(found_loss, loss)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


def every_family() -> None:
    for family in FAMILIES:
        same(model(family))
        assert f"{family}Model computes no padding in its layers" in NOTES
    same(model("Llama"), {**batch(), "use_cache": False})


def adapters_and_recomputation() -> None:
    for use_reentrant in (True, False):
        made = peft.get_peft_model(model("Qwen2"), peft.LoraConfig(target_modules="all-linear"))
        made.train()
        made.enable_input_require_grads()
        made.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        same(made)


def autocast() -> None:
    """Scores are as far from those in fp32 as with padding."""
    made, inputs = model("Llama"), batch()
    is_real = inputs["attention_mask"] == 1
    with torch.no_grad():
        exact = made(**inputs).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = made(**inputs).logits
            with mock.patch.object(unpadded, "layout_of", return_value=None):
                padded = made(**inputs).logits
    ours, theirs = (float((scores - exact)[is_real].norm()) for scores in (found, padded))
    assert 0 < ours < 1.2 * theirs, (ours, theirs)


def scores_keep_their_shape() -> None:
    made, inputs = model("Llama"), batch()
    scores = made(**inputs).logits
    with mock.patch.object(unpadded, "layout_of", return_value=None):
        expected = made(**inputs).logits
    assert scores.shape == expected.shape
    is_real = inputs["attention_mask"] == 1
    torch.testing.assert_close(scores[is_real], expected[is_real], rtol=1e-4, atol=1e-5)


def the_rest_computes_padding() -> None:
    left = {name: values.flip(1) for name, values in batch().items()}
    same(model("Llama"), left, skips=False)
    labelled = batch()
    labelled["labels"][:, -1] = 3
    same(model("Llama"), labelled, skips=False)
    same(model("Mistral", sliding_window=8), skips=False)
    inputs = batch()
    del inputs["labels"]
    before = USE.skipped
    made = model("Llama").eval()
    made(**inputs)
    made.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=2)
    assert USE.skipped == before


def main() -> None:
    no_padding.install(USE)
    checks = (
        every_family,
        adapters_and_recomputation,
        autocast,
        scores_keep_their_shape,
        the_rest_computes_padding,
    )
    for check in checks:
        check()
        print(check.__name__, flush=True)
    print("main")


if __name__ == "__main__":
    main()
