"""The ranks' copies of the model: collect values from all ranks, and compare the weights at the end of a run."""

from __future__ import annotations

import hashlib
import resource
from dataclasses import dataclass

import torch
import torch.distributed as dist

from cpu_train_stack.group.create import gather
from cpu_train_stack.train.model.sharding import full_tensor


@dataclass(frozen=True)
class Replica:
    """The report of one rank. `peak_memory_bytes`: its largest resident set."""

    rank: int
    node_rank: int
    weights_sha256: str | None
    peak_memory_bytes: int


def copy_from_rank_0(model: torch.nn.Module) -> None:
    """Copy rank 0's trained parameters and buffers (any shapes and dtypes) to every rank. A collective."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    trained = (parameter.data for parameter in model.parameters() if parameter.requires_grad)
    for tensor in (*trained, *model.buffers()):
        dist.broadcast(tensor, 0)


def weights_sha256(model: torch.nn.Module) -> str:
    """A hash over names, dtypes, shapes and bytes of the model's state, sorted by name."""
    digest = hashlib.sha256()
    for name, part in sorted(model.state_dict().items()):
        tensor = full_tensor(part)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def report(model: torch.nn.Module, rank: int, node_rank: int, hash_weights: bool) -> list[Replica]:
    """The reports of all ranks. A collective."""
    own = Replica(
        rank=rank,
        node_rank=node_rank,
        weights_sha256=weights_sha256(model) if hash_weights else None,
        # Linux counts in kilobytes.
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    return [Replica(**found) for found in gather(vars(own))]


def difference(replicas: list[Replica]) -> str | None:
    """An error that names the ranks whose weights differ from rank 0's, None if all weights are equal."""
    wrong = [replica.rank for replica in replicas if replica.weights_sha256 != replicas[0].weights_sha256]
    if not wrong:
        return None
    return f"the weights of ranks {wrong} differ from rank 0's after training: the replicas have drifted apart"
