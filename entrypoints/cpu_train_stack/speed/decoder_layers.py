"""Decoders compute what lies between their matrix products in one pass each (operators.decoder).

The classes of every model that compute what the kernels do are changed (speed.patterns): the layer adds to the
residual stream and normalizes in one pass, and SwiGLU, RMSNorm and rotary embeddings are one pass each. Under
autocast, results that only matrix products use are rounded to its dtype at once, as the products would do. A layer
that differs from transformers' own (hooks, other modules, other dtypes) is computed as before.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any, Callable

import torch
from transformers.activations import ACT2FN

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import is_plain
from cpu_train_stack.operators import decoder, numbers
from cpu_train_stack.operators.bf16_products import autocast_dtype
from cpu_train_stack.operators.recomputation import not_kept
from cpu_train_stack.speed import patterns

_ROTARY = "apply_rotary_pos_emb"
# What a layer applies to the results of attention and of the MLP before it adds them: the names of its attributes.
# Llama and most others, Granite, Phi-3.
_BEFORE_SUMS = (("", ""), ("residual_multiplier",) * 2, ("resid_attn_dropout", "resid_mlp_dropout"))


@dataclass(frozen=True)
class NormRule:
    """How a class of RMSNorm computes.

    `epsilon`: the name of its attribute. `offset`: what it adds to the weight. `keeps_dtype`: the result has the
    dtype of the input; otherwise, the weight's dtype may widen it.
    """

    epsilon: str
    offset: float
    keeps_dtype: bool

    def dtype(self, stream: Any, weight: Any) -> Any:
        """Of the result."""
        return stream.dtype if self.keeps_dtype else _promoted(stream, weight)

    def computed(self, norm: Any, stream: Any, added: Any, dtype: Any, again: bool = False) -> tuple[Any, Any]:
        """The sum and its RMSNorm, see operators.decoder.norm."""
        weight = norm.weight.float() + self.offset if self.offset else norm.weight
        return decoder.norm(stream, added, weight, getattr(norm, self.epsilon), dtype, again)


# The classes of RMSNorm and of MLP whose forward is replaced.
NORMS: dict[type, NormRule] = {}
MLPS: set[type] = set()


def hook(_situation: Situation, module: Any) -> None:
    """Change a module of transformers that has models."""
    if numbers.supported():
        change(module)


def change(module: Any) -> list[str]:
    """Change what a module of transformers has. Returns the names."""
    found = patterns.change(module, {"RMSNorm": _norm, "DecoderLayer": _layer, "MLP": _mlp})
    rotary = None
    with patterns.attempt():
        rotary = _rotary(getattr(module, _ROTARY, None))
    if rotary is not None:
        setattr(module, _ROTARY, rotary)
        found.append(_ROTARY)
    return found


def _norm(_module: Any, kind: Any) -> Callable[..., Any] | None:
    """This function and the next ones return what replaces the forward of a class, None for another class."""
    if len(inspect.signature(kind).parameters) != 2:
        return None  # other settings than size and epsilon, such as groups, or no weight
    norm = kind(4, eps=0.5)
    epsilon = next((name for name in ("variance_epsilon", "eps") if getattr(norm, name, None) == 0.5), "")
    (weight,), states = norm.parameters(), torch.arange(8, dtype=torch.float32).sin().view(2, 4)
    weight.data = states[1].cos()
    normed = states * (states.square().mean(-1, keepdim=True) + 0.5).rsqrt()
    for offset in (0.0, 1.0):
        if epsilon and torch.allclose(kind.forward(norm, states), normed * (weight + offset), 1e-6, 1e-6):
            keeps_dtype = kind.forward(norm, states.bfloat16()).dtype == torch.bfloat16
            NORMS[kind] = NormRule(epsilon, offset, keeps_dtype)
            return _norm_forward
    return None


def _layer(_module: Any, kind: Any) -> Callable[..., Any] | None:
    first, *others = patterns.inputs_of(kind)
    if first != "hidden_states":
        return None
    values = {"residual_multiplier": 0.3, "resid_attn_dropout": torch.asinh, "resid_mlp_dropout": torch.atan}
    options = {name: object() for name in others}

    def attend(hidden_states: Any, **given: Any) -> tuple[Any, None]:
        return hidden_states.tanh() if given == options else hidden_states, None

    def forward(self: Any, states: Any) -> Any:
        return inspect.unwrap(kind.forward)(self, states, **options)

    def formula(before: list[Any], states: Any) -> Any:
        states = states + _applied(before[0], states.sin().tanh())
        return states + _applied(before[1], states.cos().sigmoid())

    for names in _BEFORE_SUMS:
        wanted = functools.partial(formula, [values.get(name) for name in names])
        parts = {name: values[name] for name in names if name}
        norms = {"input_layernorm": torch.sin, "post_attention_layernorm": torch.cos}
        if patterns.computes(forward, wanted, self_attn=attend, mlp=torch.sigmoid, **norms, **parts):
            return functools.partial(_layer_forward, names)
    return None


def _mlp(_module: Any, kind: Any) -> Callable[..., Any] | None:
    parts = {"gate_proj": torch.sin, "act_fn": torch.tanh, "up_proj": torch.cos, "down_proj": torch.sigmoid}
    wanted = patterns.computes(kind.forward, lambda x: (x.sin().tanh() * x.cos()).sigmoid(), **parts)
    if not wanted:
        return None
    MLPS.add(kind)
    return _mlp_forward


def _rotary(function: Any) -> Callable[..., Any] | None:
    if function is None or [*inspect.signature(function).parameters] != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return None

    def forward(_self: Any, states: Any, angles: Any) -> Any:
        return torch.cat(function(states[:, None], states[:, None].cos(), angles.cos(), angles.sin()), 1)

    def formula(states: Any, angles: Any) -> Any:
        states = torch.stack((states, states.cos()), 1)
        turned = torch.cat((-states[..., 2:], states[..., :2]), -1)
        return states * angles.cos()[:, None] + turned * angles.sin()[:, None]

    if not patterns.computes(forward, formula, 2):
        return None
    ones = torch.ones(1, 1, 2, dtype=torch.float32)
    keeps_dtype = function(ones[None].bfloat16(), ones[None], ones, ones)[0].dtype == torch.bfloat16
    return _rotary_forward(function, keeps_dtype)


def _applied(value: Any, states: Any) -> Any:
    """A factor or a module of a layer, applied to states. None: nothing."""
    if value is None:
        return states
    return value(states) if callable(value) else states * value


def _layer_forward(names: tuple[str, ...], original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Any, *args: Any, **options: Any) -> Any:
        norms = (self.input_layernorm, self.post_attention_layernorm)
        first, second = (NORMS.get(type(norm)) for norm in norms)
        if args or first is None or second is None or not all(is_plain(norm, type(norm)) for norm in norms):
            return original(self, hidden_states, *args, **options)
        if not numbers.computable(hidden_states, *(norm.weight for norm in norms)):
            return original(self, hidden_states, *args, **options)
        before = [getattr(self, name, None) for name in names]
        dtype = autocast_dtype() or first.dtype(hidden_states, norms[0].weight)
        stream, normed = first.computed(norms[0], hidden_states, None, dtype, again=True)
        with not_kept(normed):
            added = _applied(before[0], self.self_attn(hidden_states=normed, **options)[0])
        if not _can_add(stream, added):
            stream = stream + added
            return stream + _applied(before[1], self.mlp(self.post_attention_layernorm(stream)))
        # In these classes, only matrix products read the result. Experts compute in its dtype.
        narrow = autocast_dtype() if type(self.mlp) in MLPS else None
        dtype = narrow or second.dtype(stream, norms[1].weight)
        stream, normed = second.computed(norms[1], stream, added, dtype, again=True)
        with not_kept(normed):
            added = _applied(before[1], self.mlp(normed))
        return decoder.add(stream, added) if _can_add(stream, added) else stream + added

    return forward


def _can_add(stream: Any, added: Any) -> bool:
    """Whether the sum has the dtype of the stream, and the kernels support it."""
    return numbers.computable(stream, added) and _promoted(stream, added) == stream.dtype


def _norm_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **options: Any) -> Any:
        rule = NORMS.get(type(self))  # a subclass may compute something else
        if rule is None or options or len(args) != 1 or not numbers.computable(*args, self.weight):
            return original(self, *args, **options)
        return rule.computed(self, *args, None, rule.dtype(*args, self.weight))[1]

    return forward


def _mlp_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    silu = type(ACT2FN["silu"])

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        if options or len(args) != 1 or not is_plain(self.act_fn, silu):
            return original(self, *args, **options)
        gate, up = self.gate_proj(*args), self.up_proj(*args)
        if gate.dtype == up.dtype and gate.shape == up.shape and numbers.computable(gate, up):
            product = decoder.gated(gate, up)
            with not_kept(product):
                return self.down_proj(product)
        return self.down_proj(self.act_fn(gate) * up)

    return forward


def _rotary_forward(original: Callable[..., Any], keeps_dtype: bool) -> Callable[..., Any]:
    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        if unsqueeze_dim != 1 or not numbers.computable(q, k, cos, sin):
            return original(q, k, cos, sin, unsqueeze_dim)
        if not all(_can_rotate(states, cos, sin) for states in (q, k)):
            return original(q, k, cos, sin, unsqueeze_dim)
        dtypes = [autocast_dtype() or (one.dtype if keeps_dtype else _promoted(one, cos)) for one in (q, k)]
        return tuple(decoder.rotated(states, cos, sin, dtype) for states, dtype in zip((q, k), dtypes))

    return functools.wraps(original)(apply_rotary_pos_emb)


def _can_rotate(states: Any, cosines: Any, sines: Any) -> bool:
    batches, _heads, tokens, features = states.shape
    shapes = ((1, tokens, features), (batches, tokens, features))
    is_known = states.stride(3) == 1 and features % 2 == 0 and not cosines.requires_grad
    return is_known and cosines.shape == sines.shape and tuple(cosines.shape) in shapes


def _promoted(first: Any, *others: Any) -> Any:
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in others), first.dtype)
