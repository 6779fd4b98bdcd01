"""`bench scaling`'s parts: which nodes train together through which group, and how a block of steps is timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from entrypoints.bench.ceilings import everyone
from entrypoints.bench.small_encoder import LABELS, WORDS, SmallEncoder
from entrypoints.machine.cgroups import throttled_seconds

# As many buckets as DDP's 25 MiB make of BERT-base: then they overlap with backward as there.
BUCKETS = 17
# Of the all_reduce that shows latency.
SMALL_BYTES = 4096


@dataclass(frozen=True)
class Phase:
    """`nodes` nodes train at once. `backend`: of their group; None: each for itself, without any exchange."""

    nodes: int
    backend: str | None


@dataclass
class Block:
    """One timed block of a phase. Seconds are those of a step or a call, of the slowest rank."""

    seconds: float
    cpu_share: float
    throttled_share: float


@dataclass
class Found:
    """Of one phase: blocks of steps, and seconds of an all_reduce alone by bytes."""

    blocks: list[Block] = field(default_factory=list)
    all_reduce: dict[int, list[float]] = field(default_factory=dict)


class Trainer:
    """A rank's model with a DistributedDataParallel for each group that it is in. The model is one for all."""

    def __init__(self, length: int) -> None:
        torch.manual_seed(0)
        self.length = length
        self.model = SmallEncoder(length).train()
        self.bytes = sum(parameter.numel() * 4 for parameter in self.model.parameters())
        self.embedding_bytes = self.model.words.weight.numel() * 4
        self._buffer = torch.zeros(self.bytes // 4).fill_(0)  # touched, so that its pages are there
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self._modules: dict[Phase, nn.Module] = {}
        torch.manual_seed(1 + dist.get_rank())  # data and dropout are each rank's own
        self.use(1)

    def use(self, batch: int) -> None:
        """Train on so many samples from now on."""
        self.batch = batch
        self.tokens = torch.randint(0, WORDS, (batch, self.length))
        self.labels = torch.randint(0, LABELS, (batch,))

    def buffer(self, size: int) -> Tensor:
        """So many bytes to exchange, at most those of the gradients."""
        return self._buffer[: size // 4]

    def join(self, phase: Phase, group: dist.ProcessGroup) -> None:
        """A collective of the group."""
        megabytes = self.bytes / BUCKETS / (1 << 20)
        self._modules[phase] = DistributedDataParallel(self.model, process_group=group, bucket_cap_mb=megabytes)

    def steps(self, phase: Phase, count: int) -> None:
        module = self._modules.get(phase, self.model)
        for _ in range(count):
            module(self.tokens, self.labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def gradient(self, phase: Phase) -> float:
        """One step's, as a number that differs from rank to rank unless their gradients were averaged."""
        self._modules.get(phase, self.model)(self.tokens, self.labels).backward()
        found = sum(float(parameter.grad.double().abs().sum()) for parameter in self.model.parameters())
        self.optimizer.zero_grad(set_to_none=True)
        return found


def timed(work: Callable[[], None], count: int, takes_part: bool) -> Block:
    """A collective of all ranks: `work`, which is `count` steps or calls, where it takes part; others sleep."""
    dist.barrier()
    began, cpu, throttled = time.perf_counter(), time.process_time(), throttled_seconds()
    if takes_part:
        work()
    elapsed = time.perf_counter() - began
    shares = ((time.process_time() - cpu) / elapsed, (throttled_seconds() - throttled) / elapsed)
    parts = [part for part in everyone((elapsed, *shares) if takes_part else None) if part]
    seconds, cpu_share, throttled_share = (max(values) for values in zip(*parts))
    return Block(seconds / count, cpu_share, throttled_share)


def all_reduces(buffer: Tensor, group: dist.ProcessGroup | None, calls: int) -> Callable[[], None]:
    """`calls` calls for all of `buffer`."""

    def work() -> None:
        for _ in range(calls):
            dist.all_reduce(buffer, group=group)

    return work


def documents(found: dict[Phase, Found]) -> Sequence[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "nodes": phase.nodes,
            "backend": phase.backend,
            "seconds": [block.seconds for block in of.blocks],
            "cpu_share": [round(block.cpu_share, 4) for block in of.blocks],
            "throttled_share": [round(block.throttled_share, 4) for block in of.blocks],
            "all_reduce": [{"bytes": size, "seconds": times} for size, times in of.all_reduce.items()],
        }
        for phase, of in found.items()
    ]
