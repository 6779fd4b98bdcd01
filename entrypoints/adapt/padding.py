"""What the arguments of a model's forward say about padding, and why its layers have to compute it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

ATTENTION = "sdpa"  # transformers' name of torch's scaled_dot_product_attention
_IGNORED = -100  # the label of positions that the loss ignores, in torch and transformers
_KNOWN = {"input_ids", "attention_mask", "token_type_ids", "position_ids", "return_dict", "num_items_in_batch"}
_OUTPUTS = ("output_hidden_states", "output_attentions")


def given(signature: inspect.Signature, *call: Any) -> dict[str, Any]:
    """The arguments of a call by name, without those that are None."""
    model, args, options = call
    bound = signature.bind(model, *args, **options).arguments
    bound.update(bound.pop("kwargs", {}))
    return {name: value for name, value in bound.items() if value is not None and name != "self"}


def share(config: Any, arguments: Mapping[str, Any]) -> float:
    """Of all positions, as far as the arguments show it. 0 if their values cannot be read (meta tensors, vmap)."""
    mask, ids = arguments.get("attention_mask"), arguments.get("input_ids")
    padding = getattr(config, "pad_token_id", None)
    try:
        if mask is not None:
            return float((mask == 0).float().mean())
        return 0.0 if ids is None or padding is None else float((ids == padding).float().mean())
    except RuntimeError:
        return 0.0


def label_problem(arguments: Mapping[str, Any]) -> str | None:
    """Why a loss over all positions may depend on padding positions."""
    labels, mask = arguments.get("labels"), arguments.get("attention_mask")
    if labels is None:
        return "without labels, the caller may use the scores at padding positions"
    if mask is None or labels.shape != mask.shape or bool((labels[mask == 0] == _IGNORED).all()):
        return None
    return f"padding has other labels than {_IGNORED}"


def unsupported(config: Any, arguments: Mapping[str, Any]) -> str | None:
    """Why the layers cannot compute the rows of these arguments end to end."""
    outputs = [name for name in _OUTPUTS if arguments.get(name, getattr(config, name, False))]
    others = sorted({name for name, value in arguments.items() if value is not False} - {*_KNOWN, *_OUTPUTS})
    mask = arguments.get("attention_mask")
    if outputs or others:
        return f"{(outputs + others)[0]} is not supported"
    if mask is None or mask.dim() != 2:
        return "there is no attention_mask" if mask is None else f"attention_mask has {mask.dim()} dimensions"
    if getattr(config, "is_decoder", False):
        return "it is a decoder"
    if config._attn_implementation != ATTENTION:
        return f"its attn_implementation is {config._attn_implementation}, not {ATTENTION}"
    return None
