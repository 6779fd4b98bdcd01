"""Encoders compute what lies between their matrix products in one pass each (operators.encoder).

The classes of every model that compute what the kernels do are changed (speed.patterns): dropout, the sum with the
residual stream and LayerNorm are one pass, and so is GELU. Under autocast, the products of a layer read one copy
of the stream instead of casting it each. A layer that differs from transformers' own (hooks, other modules, other
dtypes) is computed as before.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Callable

import torch
from transformers.activations import GELUActivation

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import is_plain
from cpu_train_stack.operators import dropout, encoder, numbers
from cpu_train_stack.operators.bf16_products import autocast_dtype
from cpu_train_stack.operators.recomputation import not_kept
from cpu_train_stack.speed import patterns

# The layers of an attention for queries, keys and values, and the one after it.
_ATTENTIONS = ((("query", "key", "value"), None), (("q_lin", "k_lin", "v_lin"), "out_lin"))
# The names of the argument with a decoder's cache: since transformers 5.24, and before.
_CACHES = ("cache", "past_key_values")


def hook(_situation: Situation, module: Any) -> None:
    """Change a module of transformers that has models."""
    if numbers.supported():
        change(module)


def change(module: Any) -> list[str]:
    """Change what a module of transformers has. Returns the names."""
    table = {"SelfAttention": _self_attention, "Intermediate": _intermediate, "Output": _output}
    return patterns.change(module, {**table, "TransformerBlock": _block})


def _self_attention(module: Any, kind: Any) -> Callable[..., Any] | None:
    """This function and the next ones return what replaces the forward of a class, None for another class."""
    if {*patterns.inputs_of(kind)} - {"hidden_states", "attention_mask", *_CACHES}:
        return None

    def forward(self: Any, states: Any) -> Any:
        return inspect.unwrap(kind.forward)(self, states, None)[0]

    def formula(last: str | None, states: Any) -> Any:
        query, key, value = (one.view(2, 3, 2, 2).transpose(1, 2) for one in (states.sin(), states.cos(), states))
        weights = (query @ key.transpose(2, 3) * 0.7).softmax(-1)
        out = (weights @ value).transpose(1, 2).reshape(2, 3, 4)
        return out if last is None else out.tanh()

    for names, last in _ATTENTIONS:
        parts = {**dict(zip(names, (torch.sin, torch.cos, torch.clone))), **({last: torch.tanh} if last else {})}
        if patterns.computes(
            forward, functools.partial(formula, last), attention_head_size=2, scaling=0.7, is_causal=False,
            is_decoder=False, dropout=torch.nn.Dropout(0.0), config=SimpleNamespace(_attn_implementation="eager"),
            **parts,
        ):  # fmt: skip
            return _attention_forward(module, names, last)
    return None


def _intermediate(_module: Any, kind: Any) -> Callable[..., Any] | None:
    parts = {"dense": torch.sin, "intermediate_act_fn": torch.tanh}
    is_ours = patterns.computes(kind.forward, lambda x: x.sin().tanh(), **parts)
    return _intermediate_forward if is_ours and patterns.inputs_of(kind) == ["hidden_states"] else None


def _output(_module: Any, kind: Any) -> Callable[..., Any] | None:
    def formula(states: Any, stream: Any) -> Any:
        return (states.sin().tanh() + stream).cos()

    parts = {"dense": torch.sin, "dropout": torch.tanh, "LayerNorm": torch.cos}
    is_ours = patterns.computes(kind.forward, formula, 2, **parts)
    return _output_forward if is_ours and patterns.inputs_of(kind) == ["hidden_states", "input_tensor"] else None


def _block(module: Any, kind: Any) -> Callable[..., Any] | None:
    def attend(states: Any, **_options: Any) -> tuple[Any, None]:
        return states.sin(), None

    def formula(states: Any) -> Any:
        states = (states.sin() + states).cos()
        return (states.tanh() + states).sigmoid()

    norms = {"sa_layer_norm": torch.cos, "output_layer_norm": torch.sigmoid}
    is_block = patterns.computes(kind.forward, formula, attention=attend, ffn=torch.tanh, **norms)
    return functools.partial(_block_forward, module.FFN) if is_block and hasattr(module, "FFN") else None


def _attention_forward(
    module: Any, names: Sequence[str], last: str | None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`names`: of the layers for queries, keys and values. `last`: of the layer after attention."""

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


def _intermediate_forward(_original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Any) -> Any:
        return _activated(hidden_states, self.dense, self.intermediate_act_fn)

    return forward


def _output_forward(_original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Any, input_tensor: Any) -> Any:
        with not_kept(hidden_states):
            added = self.dense(hidden_states)
        return _normed_sum(added, input_tensor, self.dropout, self.LayerNorm)

    return forward


def _block_forward(inner_class: Any, _original: Callable[..., Any]) -> Callable[..., Any]:
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
    if not numbers.computable(stream) or not stream.is_contiguous():
        return None
    if stream.dtype is not torch.float32 or autocast_dtype() is not torch.bfloat16:
        return None
    if not all(is_plain(layer, torch.nn.Linear) or _is_adapted(layer) for layer in layers):
        return None
    return encoder.branches(stream, len(layers))


def _is_adapted(layer: Any) -> bool:
    """Whether it is peft's linear layer with LoRA, whose parts cast their input as a linear layer does."""
    kind = type(layer)
    is_lora = kind.__module__ == "peft.tuners.lora.layer" and kind.__name__ == "Linear"
    return is_lora and is_plain(layer, kind) and is_plain(layer.base_layer, torch.nn.Linear)


def _activated(stream: Any, layer: Any, activation: Any) -> Any:
    """The activation of a linear layer of the stream."""
    copies = _copies(stream, [layer])
    read = stream if copies is None else copies[0]
    with not_kept(read):
        states = layer(read)
    is_gelu = is_plain(activation, GELUActivation) and activation.act is torch.nn.functional.gelu
    if is_gelu and numbers.computable(states) and states.dtype is torch.bfloat16:
        return encoder.gelu(states)
    return activation(states)


def _normed_sum(added: Any, stream: Any, drop: Any, norm: Any) -> Any:
    """norm(drop(added) + stream). `drop`: None for no dropout."""
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
