"""Checks that encoders which a script has changed are computed with padding. A line for each that held."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from transformers.integrations.neftune import activate_neftune
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cpu_train_stack.operators import unpadded
from cpu_train_stack.speed import joining, no_padding, word_rows

LENGTHS, WIDTH = torch.tensor([9, 1, 17, 4, 12]), 20
NOTES: list[str] = []
USE = joining.Use(NOTES.append)


def model(prefix: str = "Bert", head: str = "ForSequenceClassification", **changes: Any) -> Any:
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
        pad_token_id=1, initializer_range=0.3, **changes,
    )  # fmt: skip
    torch.manual_seed(1)
    return getattr(transformers, f"{prefix}{head}")(config)


def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    mask = (torch.arange(WIDTH) < LENGTHS[:, None]).long()
    ids = torch.randint(2, 60, mask.shape) * mask + (1 - mask)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (5,))}


def is_padded(made: Any, reason: str, compute: Callable[[], float] | None = None) -> None:
    """The loss is that of the padded model, no token was skipped, and a note names the reason."""
    compute = compute or (lambda: float(made(**batch()).loss.detach()))
    NOTES.clear()
    before = USE.skipped
    torch.manual_seed(5)
    found = compute()
    assert USE.skipped == before, reason
    assert any(reason in note for note in NOTES), NOTES
    with mock.patch.object(unpadded, "layout_of", return_value=None):
        torch.manual_seed(5)
        assert found == compute()


def an_unchanged_model_is_computed_without_padding() -> None:
    before = USE.skipped
    model()(**batch())
    assert USE.skipped == before + 5 * WIDTH - int(LENGTHS.sum())


def the_exchange_of_word_rows_keeps_the_model_without_padding() -> None:
    made, before = model(), USE.skipped
    rows = word_rows.WordRows(made.bert.embeddings.word_embeddings, made)
    made(**batch())
    assert USE.skipped == before + 5 * WIDTH - int(LENGTHS.sum())
    used = batch()["input_ids"][batch()["attention_mask"] == 1]
    assert torch.equal(rows._used.nonzero().flatten(), used.unique())
    assert not made.bert.embeddings.word_embeddings._forward_pre_hooks


def noise_in_embeddings() -> None:
    made = model().train()
    activate_neftune(made, 5.0)
    is_padded(made, "bert.embeddings.word_embeddings has a hook")


def another_head() -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(32, 3)

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.linear(states.mean(1))

    made = model("Roberta")
    made.classifier = Mean()
    is_padded(made, "classifier is a Mean")


def hooks_and_replaced_layers() -> None:
    made = model()
    hook = made.bert.encoder.layer[0].register_forward_hook(lambda *_: None)
    is_padded(made, "bert.encoder.layer.0 has a hook")
    hook.remove()

    class Mixing(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.gru = inner, torch.nn.GRU(32, 32, batch_first=True)

        def forward(self, *args: Any, **options: Any) -> Any:
            return self.gru(self.inner(*args, **options))[0]

    made.bert.encoder.layer[0] = Mixing(made.bert.encoder.layer[0])
    is_padded(made, "bert.encoder.layer.0 is a Mixing")


def replaced_methods() -> None:
    made = model()
    made.bert.embeddings.forward = functools.partial(type(made.bert.embeddings).forward, made.bert.embeddings)
    is_padded(made, "the forward of bert.embeddings is replaced")


def compiled_layers() -> None:
    made = model()
    made.bert.encoder.layer[1].compile(backend="eager")
    is_padded(made, "bert.encoder.layer.1 is compiled")


def other_attention() -> None:
    calls = []

    def own(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return sdpa_attention_forward(*args, **options)

    ours = ALL_ATTENTION_FUNCTIONS["sdpa"]
    transformers.AttentionInterface.register("sdpa", own)
    is_padded(model(), "the script has its own attention")
    assert calls
    transformers.AttentionInterface.register("sdpa", ours)
    with mock.patch.dict(ALL_ATTENTION_FUNCTIONS._local_mapping, sdpa=own):
        is_padded(model(), "the script has its own attention")


def chunks_and_shapes() -> None:
    is_padded(model(chunk_size_feed_forward=10), "chunk_size_feed_forward")
    made = model(head="ForTokenClassification")
    labels = torch.zeros(5, WIDTH, dtype=torch.int64).flatten()
    inputs = {**batch(), "labels": labels}
    is_padded(made, "labels have another shape", lambda: float(made(**inputs).loss.detach()))
    try:
        model()(**{**batch(), "attention_mask": batch()["attention_mask"][:, :18]})
    except (RuntimeError, ValueError):
        return
    raise AssertionError("a mask of another shape was accepted")


def adapters_of_a_mixed_batch() -> None:
    made = get_peft_model(model(), LoraConfig("SEQ_CLS", r=4, target_modules=["query", "value"])).eval()
    inputs = batch()
    is_padded(made, "has a hook", lambda: float(made(**inputs, adapter_names=["default"] * 5).loss.detach()))
    before = USE.skipped
    made(**inputs)
    assert USE.skipped > before  # as without it


def a_checkpointed_base_model() -> None:
    made = model().train()
    apply_activation_checkpointing(
        made,
        checkpoint_wrapper_fn=checkpoint_wrapper,
        check_fn=lambda one: isinstance(one, transformers.BertModel),
    )

    def gradient() -> float:
        made.zero_grad()
        made(**batch()).loss.backward()
        return float(made.classifier.weight.grad.sum())

    is_padded(made, "its base model is a CheckpointWrapper", gradient)


no_padding.install(USE)
for check in (
    an_unchanged_model_is_computed_without_padding,
    the_exchange_of_word_rows_keeps_the_model_without_padding,
    noise_in_embeddings,
    another_head,
    hooks_and_replaced_layers,
    replaced_methods,
    compiled_layers,
    other_attention,
    chunks_and_shapes,
    adapters_of_a_mixed_batch,
    a_checkpointed_base_model,
):
    check()
    print(check.__name__, flush=True)
