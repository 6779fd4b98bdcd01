"""The models whose layers need not compute padding, and why they have to for the arguments of a forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from cpu_train_stack import contract

# Of transformers.models. A new family is a word here, and a run of its test.
ENCODERS = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm_roberta")
DECODERS = ("gemma", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")
ANSWERS = "no-padding-answers"  # the adaptation for question answering
ATTENTION = "sdpa"  # transformers' name of torch's scaled_dot_product_attention
_IGNORED = -100  # the label of positions that the loss ignores, in torch and transformers
_KNOWN = {"input_ids", "attention_mask", "token_type_ids", "position_ids", "return_dict", "num_items_in_batch"}
# Modules that compute each token by itself, or are known with their shapes.
_LIBRARIES = ("transformers.", "peft.", "torch.distributed.", "torch.nn.modules.container", contract.MODULES)
_LAYERS = {
    f"torch.nn.modules.{name}"
    for name in (
        *("linear.Linear", "linear.Identity", "sparse.Embedding", "normalization.LayerNorm", "dropout.Dropout"),
        *("activation.Tanh", "activation.GELU", "activation.ReLU", "activation.SiLU", "loss.CrossEntropyLoss"),
    )
} | {"bitsandbytes.nn.modules.Linear4bit"}
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
    if mask is None:
        return None
    if labels.shape != mask.shape:
        return "labels have another shape than attention_mask"
    return None if bool((labels[mask == 0] == _IGNORED).all()) else f"padding has other labels than {_IGNORED}"


def module_problem(model: Any) -> str | None:
    """Why the modules inside a model may depend on the shape [rows, tokens, features] of what they get.

    Those of the libraries do not. Neither do hooks of FSDP, of `word_rows`, and those that only request gradients.
    """
    for name, module in model.named_modules():
        kind, forward = type(module), vars(module).get("forward")
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if not name:
            continue
        if not kind.__module__.startswith(_LIBRARIES) and f"{kind.__module__}.{kind.__name__}" not in _LAYERS:
            return f"{name} is a {kind.__name__}"
        if any(not _is_harmless(hook) for hook in hooks):
            return f"{name} has a hook"
        if forward is not None and not getattr(forward, "__module__", "").startswith(contract.MODULES):
            return f"the forward of {name} is replaced"
        if getattr(module, "_compiled_call_impl", None) is not None:
            return f"{name} is compiled"
    return None


def _is_harmless(hook: Any) -> bool:
    hook = getattr(hook, "func", hook)  # of functools.partial
    is_known = (getattr(hook, "__module__", None) or "").startswith(("torch.distributed.", contract.MODULES))
    return is_known or getattr(hook, "__name__", "").startswith("make_inputs_require_grad")


def unjoinable(config: Any, arguments: Mapping[str, Any]) -> str | None:
    """Why the layers cannot compute rows end to end, whatever the mask is."""
    outputs = [name for name in _OUTPUTS if arguments.get(name, getattr(config, name, False))]
    others = sorted({name for name, value in arguments.items() if value is not False} - {*_KNOWN, *_OUTPUTS})
    if getattr(config, "chunk_size_feed_forward", 0):
        return "chunk_size_feed_forward is not supported"
    if outputs or others:
        return f"{(outputs + others)[0]} is not supported"
    if config._attn_implementation != ATTENTION:
        return f"its attn_implementation is {config._attn_implementation}, not {ATTENTION}"
    return None


def unsupported(config: Any, arguments: Mapping[str, Any]) -> str | None:
    """Why the layers cannot compute the padded rows of these arguments end to end."""
    problem, mask = unjoinable(config, arguments), arguments.get("attention_mask")
    if problem is not None:
        return problem
    if mask is None or mask.dim() != 2:
        return "there is no attention_mask" if mask is None else f"attention_mask has {mask.dim()} dimensions"
    if mask.shape != arguments["input_ids"].shape:
        return "attention_mask has another shape than input_ids"
    return None
