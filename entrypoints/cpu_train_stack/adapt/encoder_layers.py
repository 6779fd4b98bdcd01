"""Encoders compute what lies between their matrix products in one pass each (operators.encoder).

The classes of each family are changed: dropout, the sum with the residual stream and LayerNorm are one pass, and
so is GELU. Under autocast, the products of a layer read one copy of the stream instead of casting it each. A layer
that differs from transformers' own (hooks, other modules, other dtypes) is computed as before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable

from cpu_train_stack.adapt.adaptation import Adaptation, Situation, is_plain
from cpu_train_stack.adapt.decoder_layers import RELEASES, obstacle
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.operators import dropout
from cpu_train_stack.operators.bf16_products import autocast_dtype

# transformers' module, and the prefix of its classes.
FAMILIES = {
    "bert": "Bert",
    "camembert": "Camembert",
    "electra": "Electra",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
}
# The names of the argument with a decoder's cache: since transformers 5.24, and before.
_CACHES = ("cache", "past_key_values")


def _change(prefix: str, module: Any) -> None:
    """Change the classes of a family's module."""
    from cpu_train_stack.operators import numbers

    if not numbers.supported():
        return
    _replace(getattr(module, f"{prefix}SelfAttention"), _attention(module, ("query", "key", "value")))
    _replace(getattr(module, f"{prefix}Intermediate"), _intermediate)
    for suffix in ("SelfOutput", "Output"):
        _replace(getattr(module, f"{prefix}{suffix}"), _output)


def _change_distilbert(module: Any) -> None:
    from cpu_train_stack.operators import numbers

    if not numbers.supported():
        return
    attention = _attention(module, ("q_lin", "k_lin", "v_lin"), last="out_lin")
    _replace(module.DistilBertSelfAttention, attention)
    _replace(module.TransformerBlock, functools.partial(_block, module.FFN))
    module.TransformerBlock.__init_subclass__()  # adds activation checkpointing to the new forward


def _replace(owner: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = owner.forward
    owner.forward = functools.wraps(original)(change(original))


def _attention(
    module: Any, names: Sequence[str], last: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`names`: of the layers for queries, keys and values. `last`: of the layer after attention."""

    from cpu_train_stack.operators.recomputation import not_kept

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self: Any, hidden_states: Any, attention_mask: Any = None, *args: Any, **options: Any) -> Any:
            layers = [getattr(self, name) for name in names]
            has_cache = bool(args) or any(options.get(name) is not None for name in _CACHES)
            copies = None if has_cache else _copies(hidden_states, layers)
            if copies is None:
                return original(self, hidden_states, attention_mask, *args, **options)
            for name in _CACHES:
                options.pop(name, None)
            shape = *hidden_states.shape[:-1], -1, self.attention_head_size
            with not_kept(copies[0]):
                heads = [layer(copy).view(shape).transpose(1, 2) for layer, copy in zip(layers, copies)]
            function = module.ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, module.eager_attention_forward
            )
            rate = self.dropout.p if self.training else 0.0
            out, weights = function(self, *heads, attention_mask, dropout=rate, scaling=self.scaling, **options)
            out = out.reshape(*shape[:-2], -1).contiguous()
            return (out if last is None else getattr(self, last)(out)), weights

        return forward

    return change


def _intermediate(_original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Any) -> Any:
        return _activated(hidden_states, self.dense, self.intermediate_act_fn)

    return forward


def _output(_original: Callable[..., Any]) -> Callable[..., Any]:
    from cpu_train_stack.operators.recomputation import not_kept

    def forward(self: Any, hidden_states: Any, input_tensor: Any) -> Any:
        with not_kept(hidden_states):
            added = self.dense(hidden_states)
        return _normed_sum(added, input_tensor, self.dropout, self.LayerNorm)

    return forward


def _block(inner_class: Any, _original: Callable[..., Any]) -> Callable[..., Any]:
    from cpu_train_stack.operators.recomputation import not_kept

    own = inner_class.forward, inner_class.ff_chunk

    def forward(self: Any, hidden_states: Any, attention_mask: Any = None, **options: Any) -> Any:
        added, _weights = self.attention(hidden_states, attention_mask=attention_mask, **options)
        states = _normed_sum(added, hidden_states, None, self.sa_layer_norm)
        inner = self.ffn
        is_own = (inner_class.forward, inner_class.ff_chunk) == own and "ff_chunk" not in vars(inner)
        if not (is_own and is_plain(inner, inner_class)) or inner.chunk_size_feed_forward:
            return _normed_sum(inner(states), states, None, self.output_layer_norm)
        product = _activated(states, inner.lin1, inner.activation)
        with not_kept(product):
            added = inner.lin2(product)
        return _normed_sum(added, states, inner.dropout, self.output_layer_norm)

    return forward


def _copies(stream: Any, layers: Sequence[Any]) -> tuple[Any, ...] | None:
    """A copy of the stream for each linear layer, in the dtype of its products. None if they have to cast."""
    import torch

    from cpu_train_stack.operators import encoder, numbers

    if not numbers.computable(stream) or not stream.is_contiguous():
        return None
    if stream.dtype is not torch.float32 or autocast_dtype() is not torch.bfloat16:
        return None
    if not all(is_plain(layer, torch.nn.Linear) or _is_adapted(layer) for layer in layers):
        return None
    return encoder.branches(stream, len(layers))


def _is_adapted(layer: Any) -> bool:
    """Whether it is peft's linear layer with LoRA, whose parts cast their input as a linear layer does."""
    import torch

    kind = type(layer)
    is_lora = kind.__module__ == "peft.tuners.lora.layer" and kind.__name__ == "Linear"
    return is_lora and is_plain(layer, kind) and is_plain(layer.base_layer, torch.nn.Linear)


def _activated(stream: Any, layer: Any, activation: Any) -> Any:
    """The activation of a linear layer of the stream."""
    import torch

    from cpu_train_stack.operators import encoder, numbers
    from cpu_train_stack.operators.recomputation import not_kept

    copies = _copies(stream, [layer])
    read = stream if copies is None else copies[0]
    with not_kept(read):
        states = layer(read)
    is_gelu = is_plain(activation, _gelu_class()) and activation.act is torch.nn.functional.gelu
    if is_gelu and numbers.computable(states) and states.dtype is torch.bfloat16:
        return encoder.gelu(states)
    return activation(states)


def _gelu_class() -> Any:
    from transformers.activations import GELUActivation

    return GELUActivation


def _normed_sum(added: Any, stream: Any, drop: Any, norm: Any) -> Any:
    """norm(drop(added) + stream). `drop`: None for no dropout."""
    import torch

    from cpu_train_stack.operators import encoder

    can = _can_sum(added, stream, norm)
    rule = None
    if drop is not None:
        has_rule = can and is_plain(drop, torch.nn.Dropout) and drop.training and dropout.is_installed()
        rule = dropout.draw_rule(drop.p) if has_rule else None
        if rule is None:
            added = drop(added)
            can = can and _can_sum(added, stream, norm)
    if not can:
        return norm(added + stream)
    return encoder.normed_sum(added, encoder.branch_of(stream), rule, norm, autocast_dtype())


def _can_sum(added: Any, stream: Any, norm: Any) -> bool:
    """Whether the kernel computes these tensors."""
    import torch

    from cpu_train_stack.operators import numbers

    if not is_plain(norm, torch.nn.LayerNorm) or norm.weight is None or norm.bias is None:
        return False
    tensors = added, stream, norm.weight, norm.bias
    return (
        numbers.computable(*tensors)
        and added.shape == stream.shape
        and norm.normalized_shape == stream.shape[-1:]
        and all(tensor.dtype is torch.float32 for tensor in tensors[1:])
        and autocast_dtype() in (None, torch.bfloat16)
        and added.is_contiguous()
        and stream.is_contiguous()
    )


def _install(situation: Situation) -> None:
    if RELEASES.has(situation) and obstacle(situation) is None:
        for name, prefix in FAMILIES.items():
            after_import(f"transformers.models.{name}.modeling_{name}", functools.partial(_change, prefix))
        after_import("transformers.models.distilbert.modeling_distilbert", _change_distilbert)


ADAPTATIONS = (
    Adaptation(
        "encoder-layers", "encoders compute dropout, residual sums and normalization in one pass, and GELU faster",
        (RELEASES,), _install, obstacle=obstacle,
        when=f"to models of {', '.join(FAMILIES.values())} and DistilBert, on CPUs with AVX-512",
    ),
)  # fmt: skip
