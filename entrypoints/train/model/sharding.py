"""FSDP2: each rank keeps a part of the weights, gradients and optimizer, from the moment they are read.

transformers reads a model sharded (DistributedConfig) and trains it; accelerate's own FSDP silently does nothing
on CPUs. What transformers lacks is a checkpoint of the optimizer: it is written whole here, by rank 0, so that
any number of ranks can go on from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from entrypoints.cli.errors import UsageError


def options(world_size: int) -> dict[str, Any]:
    """from_pretrained's options for a model that is sharded over all ranks. Raises UsageError."""
    import torch
    import transformers

    try:
        from transformers.distributed import DistributedConfig

        config = DistributedConfig(fsdp_size=world_size)
    except (ImportError, TypeError) as error:
        raise UsageError(
            f"--fsdp needs transformers 5.23 or newer, this image has {transformers.__version__}: take a newer pin"
        ) from error
    # What torch warns of does not happen: `initialize` makes new weights, and nothing is changed in place.
    warnings.filterwarnings("ignore", message="DTensor random operators|FSDP2-wrapped module")
    return {"distributed_config": config, "dtype": torch.float32}


def initialize(model: Any, names: Iterable[str], random_state: Any) -> None:
    """Gives new weights the values that they would have in a whole model. `random_state`: torch's before loading.

    transformers 5.23 lets each rank draw its own part from the same seed: all parts of a new head are alike then,
    and a classifier of two classes never tells them apart.
    """
    import torch
    import torch.distributed as dist

    new = set(names)
    deviation = float(getattr(model.config, "initializer_range", 0.02))
    torch.set_rng_state(random_state)
    for name, parameter in model.named_parameters():
        if name in new and parameter.dim() > 1:  # biases and norms begin with constants
            full = torch.empty(parameter.shape).normal_(0.0, deviation)
            if hasattr(parameter, "to_local"):
                part = parameter.to_local()
                parts = full.chunk(dist.get_world_size())  # FSDP2 shards the rows as chunk does
                if part.numel():
                    part.detach().copy_(parts[dist.get_rank()])
            else:
                parameter.detach().copy_(full)


def is_sharded(model: Any) -> bool:
    """Whether the ranks hold parts of this model."""
    return bool(getattr(model, "is_distributed_loading_by_transformers", False))


def reshard(model: Any) -> None:
    """Gives back what a forward pass without a backward pass has gathered. The parameters that an optimizer takes
    or has taken are the parts; until then a model shows whole ones in their place."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


def whole(tensor: Any) -> Any:
    """A tensor with all ranks' parts: a collective if it has parts."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def load_weights(model: Any, folder: Path, reads: bool) -> None:
    """Load a checkpoint's weights into each rank's shard. Only the rank that `reads` opens files. A collective."""
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import state_dict

    reshard(model)
    files = sorted(folder.glob("model*.safetensors")) if reads else []
    weights = {name: weight for file in files for name, weight in load_file(file).items()}
    # Not strict: a file holds weights shared by two layers only once.
    wanted = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    state_dict.set_model_state_dict(model, weights, options=wanted)


def save_optimizer(model: Any, optimizer: Any, path: Path, writes: bool) -> None:
    """Gathers the optimizer's state and writes it on the rank that `writes`. A collective."""
    import torch
    from torch.distributed.checkpoint import state_dict

    reshard(model)
    wanted = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = state_dict.get_optimizer_state_dict(model, _bare(optimizer), options=wanted)
    if writes:
        torch.save(state, path)


def load_optimizer(model: Any, optimizer: Any, path: Path) -> bool:
    """The reverse, on every rank and for any number of them, one alone too. A collective.

    False where the file is of a model that was not sharded, which the optimizer itself can read. Raises UsageError
    if this one is.
    """
    import torch
    from torch.distributed.checkpoint import state_dict

    state = torch.load(path, map_location="cpu", weights_only=True)
    by_name = any(isinstance(name, str) for group in state["param_groups"] for name in group["params"])
    if not by_name:
        if is_sharded(model):
            raise UsageError(f"checkpoint '{path.parent}' was made without --fsdp: resume without it")
        return False
    reshard(model)
    wanted = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    state_dict.set_optimizer_state_dict(model, _bare(optimizer), state, options=wanted)
    return True


def _bare(optimizer: Any) -> Any:
    """torch's own, from inside accelerate's."""
    return getattr(optimizer, "optimizer", optimizer)
