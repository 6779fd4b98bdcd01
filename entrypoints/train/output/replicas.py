"""Compares the ranks at the end of a run: the same weights everywhere, and what each of them used."""

from __future__ import annotations

import hashlib
import resource
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from entrypoints.train.model.sharding import whole


@dataclass(frozen=True)
class Replica:
    """What one rank reports. `peak_memory_bytes` is its largest resident set."""

    rank: int
    node_rank: int
    weights_sha256: str | None
    peak_memory_bytes: int


def gather(value: Any) -> list[Any]:
    """The value of every rank, in their order. A collective; a single rank without a group gets its own."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def copy_from_rank_0(model: torch.nn.Module) -> None:
    """Gives every rank what training changes of rank 0's model: trained parameters, and buffers. A collective."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    trained = (parameter.data for parameter in model.parameters() if parameter.requires_grad)
    for tensor in (*trained, *model.buffers()):
        dist.broadcast(tensor, 0)


def weights_sha256(model: torch.nn.Module) -> str:
    """A hash over names, types, shapes and bytes of the model's whole state, in the order of the names."""
    digest = hashlib.sha256()
    for name, part in sorted(model.state_dict().items()):
        tensor = whole(part)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def report(model: torch.nn.Module, rank: int, node_rank: int, hash_weights: bool) -> list[Replica]:
    """Every rank's report. A collective."""
    mine = Replica(
        rank=rank,
        node_rank=node_rank,
        weights_sha256=weights_sha256(model) if hash_weights else None,
        # Linux counts in kilobytes.
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    return gather(mine)


def difference(replicas: list[Replica]) -> str | None:
    """One line that names the ranks whose weights differ from rank 0's; None if there are none."""
    strange = [replica.rank for replica in replicas if replica.weights_sha256 != replicas[0].weights_sha256]
    if not strange:
        return None
    return f"the weights of ranks {strange} differ from rank 0's after training: the replicas have drifted apart"
