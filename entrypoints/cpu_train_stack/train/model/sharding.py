"""FSDP2: each rank holds a shard of the weights, gradients and optimizer state.

transformers loads a model sharded (DistributedConfig) and trains it; accelerate's own FSDP silently does nothing
on CPUs. transformers cannot save the optimizer of a sharded model: rank 0 writes its complete state here, so that
any number of ranks can resume.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.model import configuration


def options(world_size: int) -> dict[str, Any]:
    """from_pretrained's options for a model that is sharded over all ranks. Raises UsageError."""
    try:
        from transformers.distributed import DistributedConfig

        config = DistributedConfig(fsdp_size=world_size)
    except (ImportError, TypeError) as error:
        raise UsageError(
            f"--fsdp needs transformers 5.23 or newer, this image has {transformers.__version__}: use a newer pin"
        ) from error
    # These warnings do not apply: `initialize` sets new weights, and nothing is changed in place.
    warnings.filterwarnings("ignore", message="DTensor random operators|FSDP2-wrapped module")
    return {"distributed_config": config, "dtype": torch.float32}


def initialize(model: Any, names: Iterable[str], random_state: Any) -> None:
    """Give new weights the values that they would have in a new, unsharded model.

    `names`: the new weights. `random_state`: torch's state (uint8) before loading. transformers 5.23 lets each
    rank draw its own shard from the same seed: all shards of a new head are equal then, and a classifier of two
    classes never distinguishes them.
    """
    new = set(names)
    deviation = float(getattr(configuration.text_of(model.config), "initializer_range", 0.02))
    torch.set_rng_state(random_state)
    for name, parameter in model.named_parameters():
        if name in new and parameter.dim() > 1:  # biases and norms start as constants
            full = torch.empty(parameter.shape).normal_(0.0, deviation)
            if hasattr(parameter, "to_local"):
                part = parameter.to_local()
                parts = full.chunk(dist.get_world_size())  # FSDP2 shards the rows as chunk does
                if part.numel():
                    part.detach().copy_(parts[dist.get_rank()])
            else:
                parameter.detach().copy_(full)


def clear_biases(model: Any, names: Iterable[str]) -> None:
    """Set these parameters to zero if they are vectors, as in a new linear layer."""
    wanted = set(names)
    for name, parameter in model.named_parameters():
        if name in wanted and parameter.dim() == 1:
            parameter.detach().zero_()


def is_sharded(model: Any) -> bool:
    """Whether each rank holds only a shard of this model."""
    return bool(getattr(model, "is_distributed_loading_by_transformers", False))


def class_of(model: Any) -> Any:
    """The model's class in transformers. FSDP2 replaces it in a sharded model by a subclass of its own."""
    return next(kind for kind in type(model).__mro__ if not kind.__name__.startswith("FSDP"))


def reshard(model: Any) -> None:
    """Free the parameters that a forward pass without a backward pass has gathered. Until then, the model shows
    complete parameters in place of the shards, which the optimizer needs."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


def full_tensor(tensor: Any) -> Any:
    """The complete tensor, same dtype, of a DTensor (a collective) or of a tensor (unchanged)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def load_weights(model: Any, weights: dict[str, Any]) -> None:
    """Copy rank 0's weights, by their names in the model, into each rank's shard. A collective."""
    from torch.distributed.checkpoint import state_dict

    reshard(model)
    # Not strict: a file holds weights shared by two layers only once.
    wanted = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    state_dict.set_model_state_dict(model, weights, options=wanted)


def save_optimizer(model: Any, optimizer: Any, path: Path, writes: bool) -> None:
    """Gather the optimizer's state, and write it on the rank that `writes`. A collective."""
    from torch.distributed.checkpoint import state_dict

    reshard(model)
    wanted = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = state_dict.get_optimizer_state_dict(model, _bare(optimizer), options=wanted)
    if writes:
        torch.save(state, path)


def load_optimizer(model: Any, optimizer: Any, path: Path) -> bool:
    """Load the state that `save_optimizer` wrote, on any number of ranks. A collective.

    Returns False for the file of an unsharded model, which the optimizer can load. Raises UsageError if the file
    is of an unsharded model but `model` is sharded.
    """
    from torch.distributed.checkpoint import state_dict

    state = torch.load(path, map_location="cpu", weights_only=True)
    by_name = any(isinstance(name, str) for group in state["param_groups"] for name in group["params"])
    if not by_name:
        if is_sharded(model):
            raise UsageError(f"checkpoint '{path.parent}' was written without --fsdp: resume without --fsdp")
        return False
    reshard(model)
    wanted = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state_dict.set_optimizer_state_dict(model, _bare(optimizer), state, options=wanted)
    return True


def _bare(optimizer: Any) -> Any:
    """torch's optimizer inside accelerate's."""
    return getattr(optimizer, "optimizer", optimizer)
