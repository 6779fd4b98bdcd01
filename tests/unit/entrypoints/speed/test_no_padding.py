"""When an encoder's rows cannot be computed without padding. The computation is tested in the image."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.speed import padding


def config(**changes: Any) -> Any:
    return SimpleNamespace(**{"_attn_implementation": "sdpa", "is_decoder": False, **changes})


def tensor(*shape: int) -> Any:
    return SimpleNamespace(dim=lambda: len(shape), shape=shape)


ROWS = {"input_ids": tensor(5, 20), "attention_mask": tensor(5, 20)}


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        (config(), {}, None),
        (config(), {"token_type_ids": "types", "return_dict": True, "use_cache": False}, None),
        (config(), {"output_attentions": False, "num_items_in_batch": 3}, None),
        (config(), {"output_attentions": True}, "output_attentions is not supported"),
        (config(output_hidden_states=True), {}, "output_hidden_states is not supported"),
        (config(output_hidden_states=True), {"output_hidden_states": False}, None),
        (config(), {"inputs_embeds": "floats"}, "inputs_embeds is not supported"),
        (config(), {"cu_seq_lens_q": "starts"}, "cu_seq_lens_q is not supported"),
        (config(), {"use_cache": True}, "use_cache is not supported"),
        (config(), {"attention_mask": None}, "there is no attention_mask"),
        (config(), {"attention_mask": tensor(5, 20, 20)}, "attention_mask has 3 dimensions"),
        (config(), {"attention_mask": tensor(5, 18)}, "attention_mask has another shape than input_ids"),
        (config(chunk_size_feed_forward=10), {}, "chunk_size_feed_forward is not supported"),
        (config(_attn_implementation="eager"), {}, "its attn_implementation is eager, not sdpa"),
    ],
)
def test_arguments_that_the_layers_cannot_join_have_a_reason(
    model: Any, changes: dict[str, Any], reason: str | None
) -> None:
    assert padding.unsupported(model, {**ROWS, **changes}) == reason
