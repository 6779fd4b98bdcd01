"""Decoders without padding, and packed rows without a mask: each row attends to its own tokens (speed.no_padding).

A packed batch has several rows in each sequence, whose positions start again at 0. transformers would compute the
attention of all tokens of a sequence to all others, and hide most of it. With a cache, it does not separate the
rows of a sequence.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from cpu_train_stack.operators import unpadded
from cpu_train_stack.speed import joining, padding

# Each head, and whether it has a label for each token.
_HEADS = {"ForCausalLM": True, "ForSequenceClassification": False}


def change(module: Any) -> None:
    """Change the models of a family."""
    joining.replace_model(module, _base, _HEADS)


def _base(model: Any, given: dict[str, Any], original: Callable[..., Any], unchanged: Callable[[], Any]) -> Any:
    problem = _window_problem(model.config, given)
    has_cache = given.get("use_cache", getattr(model.config, "use_cache", False))
    starts = None if problem or has_cache or joining.attention_problem() else _packed(model.config, given)
    if starts is not None and padding.module_problem(model) is None:
        return _compute_packed(original, model, given, starts)
    layout = joining.layout_for(model, given, problem)
    if layout is None:
        return unchanged()
    out = original(model, **{**joining.joined(model, given, layout), "use_cache": False})
    out.last_hidden_state = unpadded.padded(out.last_hidden_state, layout)
    return out


def _window_problem(config: Any, given: dict[str, Any]) -> str | None:
    """Why rows cannot be joined: a token does not see all tokens before it."""
    window, layers = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    tokens = given["input_ids"].shape[1] if "input_ids" in given else 0
    if window is None or tokens <= window or (layers is not None and "sliding_attention" not in layers):
        return None
    return f"rows are longer than its sliding window of {window} tokens"


def _packed(config: Any, given: dict[str, Any]) -> Any:
    """Where each row of a packed batch begins, and the number of all tokens, int64 [rows + 1]. Else None."""
    ids, positions = given.get("input_ids"), given.get("position_ids")
    if ids is None or positions is None or positions.shape != ids.shape:
        return None
    if {"attention_mask", "token_type_ids"} & set(given) or padding.unjoinable(config, given):
        return None
    is_first = torch.ones_like(positions, dtype=torch.bool)
    is_first[:, 1:] = positions.diff() != 1  # as transformers finds them
    starts = is_first.flatten().nonzero()[:, 0]
    return None if len(starts) <= len(ids) else torch.nn.functional.pad(starts, (0, 1), value=ids.numel())


def _compute_packed(original: Callable[..., Any], model: Any, given: dict[str, Any], starts: Any) -> Any:
    """The forward of a packed batch, as one sequence."""
    shape = given["input_ids"].shape
    layout = unpadded.Layout(torch.arange(len(starts) - 1), starts, shape[1])
    flat = {name: given[name].reshape(1, -1) for name in ("input_ids", "position_ids")}
    out = original(model, **{**given, **flat, "attention_mask": layout.mask, "use_cache": False})
    out.last_hidden_state = out.last_hidden_state.view(*shape, -1)
    return out
