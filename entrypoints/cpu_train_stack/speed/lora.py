"""LoRA: adapters share their layer's input and result (operators.adapted_linear), and frozen weights are bf16.

While Trainer trains in bf16, frozen weights whose values are exact in bf16, as those of published checkpoints are,
are stored in bf16: autocast would round them in every step. Afterwards, they are fp32 again, with the same values.
"""

from __future__ import annotations

import contextlib
import ctypes
import types
from collections.abc import Iterator
from typing import Any, Callable

import torch

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import around, is_plain
from cpu_train_stack.operators.adapted_linear import adapted_linear
from cpu_train_stack.operators.bf16_products import autocast_dtype
from cpu_train_stack.operators.dropout import are_plain
from cpu_train_stack.operators.four_bits import is_packed
from cpu_train_stack.operators.transforms import is_compiling, is_left_to_torch

# The weights that are stored in bf16 at present.
_NARROWED: list[Any] = []


def hook_layers(_situation: Situation, module: Any) -> None:
    """Change linear layers with an adapter. `module`: of peft's; the one of 4 bits needs bitsandbytes."""
    for name in ("Linear", "Linear4bit"):
        if hasattr(module, name):
            _hook(getattr(module, name))


def _hook(kind: Any) -> None:
    @around(kind, "forward")
    def forward(original: Any, self: Any, x: Any, *args: Any, **options: Any) -> Any:
        name = _only_adapter(self)
        # torch.compile cannot trace the conversion of weights in 4 bits.
        is_ours = name is not None and not (is_compiling() and is_packed(self.get_base_layer().weight))
        if args or options or not is_ours or is_left_to_torch() or not are_plain(x):
            with _fp32_weight(self.get_base_layer(), x):
                return original(self, x, *args, **options)
        base, down, up = self.base_layer, self.lora_A[name].weight, self.lora_B[name].weight
        dtype = autocast_dtype()
        if dtype is None:
            # Outside of Trainer's autocast, frozen weights in bf16 are still those of a layer in fp32.
            if not x.dtype == down.dtype == torch.float32 or base.weight.dtype != torch.bfloat16:
                return original(self, x)
            dtype = x.dtype
        weights = (down, up) if is_packed(base.weight) else (base.weight, down, up)
        if not are_plain(*weights) or dtype not in (torch.float32, torch.bfloat16):
            return original(self, x)
        dropout = self.lora_dropout[name]
        dropped = dropout(x.to(dtype)) if dropout.training and getattr(dropout, "p", 0) else None
        return adapted_linear(x, base.weight, base.bias, down, up, self.scaling[name], dtype, dropped)

    @around(kind, "merge")
    def exact_merge(merge: Any, self: Any, *args: Any, **options: Any) -> Any:
        weight = self.get_base_layer().weight
        if any(weight is narrowed for narrowed in _NARROWED):
            weight.data = weight.data.float()  # the sum with an adapter is not exact in bf16
        return merge(self, *args, **options)


@contextlib.contextmanager
def _fp32_weight(layer: Any, states: Any) -> Iterator[None]:
    """A layer whose weight is stored in bf16 has it in fp32 inside the block, if it computes fp32 states.

    That is the case outside of Trainer's autocast, for example where a callback calls `generate`.
    """
    if autocast_dtype() or states.dtype != torch.float32 or layer.weight.dtype != torch.bfloat16:
        yield
        return
    vars(layer)["weight"] = layer.weight.float()  # hides the parameter
    try:
        yield
    finally:
        del vars(layer)["weight"]


def _only_adapter(layer: Any) -> str | None:
    """The name of a layer's only active adapter. None unless it is plain LoRA on a frozen linear layer."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    if layer.disable_adapters or layer.merged or len(names) != 1 or names[0] in getattr(layer, "lora_variant", {}):
        return None
    base, name = layer.base_layer, names[0]
    parts = (base, layer.lora_A[name], layer.lora_B[name])
    kinds = (type(base) if is_packed(base.weight) else torch.nn.Linear, torch.nn.Linear, torch.nn.Linear)
    dropout = layer.lora_dropout[name]
    are_known = all(is_plain(part, kind) for part, kind in zip(parts, kinds))
    if (
        not is_plain(dropout, type(dropout))
        or not are_known
        or layer.lora_B[name].bias is not None
        or getattr(layer, "use_dora", {}).get(name)
    ):
        return None
    is_frozen = not any(parameter.requires_grad for parameter in base.parameters())
    return name if is_frozen else None


def hook_trainer(_situation: Situation, module: Any) -> None:
    """`module`: transformers.trainer."""

    @around(module.Trainer, "train")
    def train(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        with narrowed(self):
            return original(self, *args, **options)


def narrowed(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """A Trainer's frozen weights are stored in bf16 inside the block, if it trains in bf16."""
    is_alone = not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
    return _narrow(trainer.model) if trainer.args.bf16 and is_alone else contextlib.nullcontext()


@contextlib.contextmanager
def _narrow(model: Any) -> Iterator[None]:
    """Store the frozen weights of a model's adapted layers and of its embedding in bf16, inside the block."""
    narrowed = [weight for weight in _frozen(model) if _is_exact(weight)]
    tied = _tied(model, narrowed)
    _convert(narrowed, torch.bfloat16)
    for module, forward in tied:
        # A bound method, so that a copy of the model gets its own.
        module.forward = types.MethodType(forward, module)
    _NARROWED[:] = narrowed
    try:
        yield
    finally:
        _NARROWED.clear()
        for module, _ in tied:
            del module.forward
        # Begin with the last weight, a tied embedding: it is the largest, and there is most room at first. Skip
        # weights to which a callback has given another dtype.
        _convert([weight for weight in narrowed[::-1] if weight.dtype == torch.bfloat16], torch.float32)


def _convert(weights: list[Any], dtype: Any) -> None:
    """Store weights in another dtype, and return their old memory to the system."""
    for weight in weights:
        weight.data = weight.data.to(dtype)
        return_free_memory()


def return_free_memory() -> None:
    """Return free memory to the system. tcmalloc would keep it, in pieces that other weights do not fit into."""
    release = getattr(ctypes.CDLL(None), "MallocExtension_ReleaseFreeMemory", None)
    if release is not None:
        release()


def _embedded(embedding: Any, ids: Any) -> Any:
    return type(embedding).forward(embedding, ids).float()


def _scored(layer: Any, states: Any) -> Any:
    with _fp32_weight(layer, states):
        return type(layer).forward(layer, states)


def _frozen(model: Any) -> list[Any]:
    """The frozen weights that only changed layers use, and the embedding that is tied to the output layer."""
    if not hasattr(model, "peft_config") or not hasattr(model, "get_base_model"):
        return []
    from peft.tuners.lora.layer import Linear

    layers = [layer for layer in model.modules() if type(layer) is Linear and _only_adapter(layer) is not None]
    found = [layer.base_layer.weight for layer in layers]
    base = model.get_base_model()
    if callable(getattr(base, "get_input_embeddings", None)):
        embedding, output = base.get_input_embeddings(), base.get_output_embeddings()
        if output is not None and getattr(embedding, "weight", None) is output.weight:
            found.append(output.weight)
    return found


def _tied(model: Any, narrowed: list[Any]) -> list[tuple[Any, Callable[..., Any]]]:
    """The embedding and the output layer that share a weight which becomes bf16, and their forwards for it.

    An output layer with an adapter is not among them: its forward is already replaced.
    """
    if not narrowed:
        return []
    base = model.get_base_model()
    embedding, output = base.get_input_embeddings(), base.get_output_embeddings()
    tied = getattr(embedding, "weight", None)
    if not any(weight is tied for weight in narrowed):
        return []
    found: list[tuple[Any, Callable[..., Any]]] = [(embedding, _embedded)]
    if not hasattr(output, "lora_A"):
        found.append((output, _scored))
    kinds = {_embedded: torch.nn.Embedding, _scored: torch.nn.Linear}
    if all(type(module) is kinds[forward] and "forward" not in vars(module) for module, forward in found):
        return found
    # Other modules keep their weight.
    narrowed[:] = [weight for weight in narrowed if weight is not tied]
    return []


def _is_exact(weight: Any) -> bool:
    """Whether a weight is fp32, frozen, and the same in bf16."""
    if weight.dtype != torch.float32 or weight.requires_grad or not are_plain(weight):
        return False
    return all(torch.equal(part, part.bfloat16().float()) for part in weight.detach().split(1024))
