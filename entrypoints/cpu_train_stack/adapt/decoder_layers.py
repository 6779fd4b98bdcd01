"""Decoders compute what lies between their matrix products in one pass each (operators.decoder).

The classes of each family are changed: the layer adds to the residual stream and normalizes in one pass, and
SwiGLU, RMSNorm and rotary embeddings are one pass each. Under autocast, results that only matrix products use are
rounded to its dtype at once, as the products would do. A layer that differs from transformers' own (hooks, other
modules, other dtypes) is computed as before.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from cpu_train_stack import contract
from cpu_train_stack.adapt.adaptation import Adaptation, Releases, Situation, is_plain
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.operators import library
from cpu_train_stack.operators.bf16_products import autocast_dtype

# transformers' module, and the prefix of its classes.
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}

RELEASES = Releases("transformers", "5.0")


def _change(prefix: str, module: Any) -> None:
    """Change the classes of a family's module."""
    from cpu_train_stack.operators import numbers

    if not numbers.supported():
        return
    norm, layer = getattr(module, f"{prefix}RMSNorm"), getattr(module, f"{prefix}DecoderLayer")
    mlp = getattr(module, f"{prefix}MLP")
    layer.forward = _layer_forward(layer.forward, norm)
    layer.__init_subclass__()  # adds activation checkpointing to the new forward
    norm.forward = _norm_forward(norm.forward)
    mlp.forward = _mlp_forward(mlp.forward)
    module.apply_rotary_pos_emb = _rotary(module.apply_rotary_pos_emb)


def _layer_forward(original: Callable[..., Any], norm_class: type) -> Callable[..., Any]:
    from cpu_train_stack.operators import decoder, numbers
    from cpu_train_stack.operators.recomputation import not_kept

    def forward(self: Any, hidden_states: Any, *args: Any, **options: Any) -> Any:
        norms = (self.input_layernorm, self.post_attention_layernorm)
        weights = [norm.weight for norm in norms]
        if args or not all(is_plain(norm, norm_class) for norm in norms):
            return original(self, hidden_states, *args, **options)
        if not numbers.computable(hidden_states, *weights):
            return original(self, hidden_states, *args, **options)
        dtype = autocast_dtype() or _promoted(hidden_states, *weights)
        stream, normed = decoder.norm(
            hidden_states, None, weights[0], norms[0].variance_epsilon, dtype, again=True
        )
        with not_kept(normed):
            added = self.self_attn(hidden_states=normed, **options)[0]
        if not _can_add(stream, added):
            stream = stream + added
            return stream + self.mlp(self.post_attention_layernorm(stream))
        stream, normed = decoder.norm(stream, added, weights[1], norms[1].variance_epsilon, dtype, again=True)
        with not_kept(normed):
            added = self.mlp(normed)
        return decoder.add(stream, added) if _can_add(stream, added) else stream + added

    return functools.wraps(original)(forward)


def _can_add(stream: Any, added: Any) -> bool:
    """Whether the sum has the dtype of the stream, and the kernels support it."""
    from cpu_train_stack.operators import numbers

    return numbers.computable(stream, added) and _promoted(stream, added) == stream.dtype


def _norm_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    from cpu_train_stack.operators import decoder, numbers

    def forward(self: Any, hidden_states: Any) -> Any:
        if not numbers.computable(hidden_states, self.weight):
            return original(self, hidden_states)
        dtype = _promoted(hidden_states, self.weight)
        return decoder.norm(hidden_states, None, self.weight, self.variance_epsilon, dtype)[1]

    return functools.wraps(original)(forward)


def _mlp_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    from transformers.activations import ACT2FN

    from cpu_train_stack.operators import decoder, numbers
    from cpu_train_stack.operators.recomputation import not_kept

    silu = type(ACT2FN["silu"])

    def forward(self: Any, x: Any) -> Any:
        if not is_plain(self.act_fn, silu):
            return original(self, x)
        gate, up = self.gate_proj(x), self.up_proj(x)
        if gate.dtype == up.dtype and gate.shape == up.shape and numbers.computable(gate, up):
            product = decoder.gated(gate, up)
            with not_kept(product):
                return self.down_proj(product)
        return self.down_proj(self.act_fn(gate) * up)

    return functools.wraps(original)(forward)


def _rotary(original: Callable[..., Any]) -> Callable[..., Any]:
    from cpu_train_stack.operators import decoder, numbers

    def apply_rotary_pos_emb(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        if unsqueeze_dim != 1 or not numbers.computable(q, k, cos, sin):
            return original(q, k, cos, sin, unsqueeze_dim)
        if not all(_can_rotate(states, cos, sin) for states in (q, k)):
            return original(q, k, cos, sin, unsqueeze_dim)
        dtype = autocast_dtype()
        return tuple(decoder.rotated(states, cos, sin, dtype or _promoted(states, cos)) for states in (q, k))

    return functools.wraps(original)(apply_rotary_pos_emb)


def _can_rotate(states: Any, cosines: Any, sines: Any) -> bool:
    batches, _heads, tokens, features = states.shape
    shapes = ((1, tokens, features), (batches, tokens, features))
    is_known = states.stride(3) == 1 and features % 2 == 0 and not cosines.requires_grad
    return is_known and cosines.shape == sines.shape and tuple(cosines.shape) in shapes


def _promoted(first: Any, *others: Any) -> Any:
    import torch

    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in others), first.dtype)


def obstacle(_situation: Situation) -> str | None:
    """Why there are no kernels."""
    return None if library.wanted(contract.KERNELS) else f"{contract.KERNELS}=torch, or an image without kernels"


def _install(situation: Situation) -> None:
    if RELEASES.has(situation) and obstacle(situation) is None:
        for name, prefix in FAMILIES.items():
            path = f"transformers.models.{name}.modeling_{name}"
            after_import(path, functools.partial(_change, prefix))


ADAPTATIONS = (
    Adaptation(
        "decoder-layers",
        "decoders compute normalization, rotary embeddings, SwiGLU and residual sums in one pass each",
        (RELEASES,), _install, obstacle=obstacle,
        when=f"to models of {', '.join(FAMILIES.values())}, on CPUs with AVX-512",
    ),
)  # fmt: skip
