"""`bench scaling`'s parts: the phases, the small model that each rank trains, and the timing of blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cpu_train_stack.group.create import gather
from cpu_train_stack.machine.cgroups import throttled_seconds

LAYERS = 6
WIDTH = 384
HEADS = 12
INNER = 4 * WIDTH
# A fifth of the 13 million parameters are word embeddings, as in BERT-base. Their gradient is last, in one bucket.
WORDS = 7000
LABELS = 2
# The number of DDP's 25 MiB buckets in BERT-base: communication overlaps with backward in the same way.
BUCKETS = 17
# The size of the all_reduce that shows latency.
SMALL_BYTES = 4096


@dataclass(frozen=True, eq=False)
class Phase:
    """`nodes` nodes train, and the other nodes sleep. `takes_part`: whether this rank trains.

    `backend`: of the training ranks' group; None: every rank trains alone. `group`: None without a backend, and on
    sleeping ranks.
    """

    nodes: int
    backend: str | None
    takes_part: bool
    group: dist.ProcessGroup | None


@dataclass
class Block:
    """One timed block of a phase. `seconds`: of a step or a call, of the slowest rank."""

    seconds: float
    cpu_share: float
    throttled_share: float


@dataclass
class Measurements:
    """The measurements of one phase: blocks of steps, and seconds of a separate all_reduce by bytes."""

    blocks: list[Block] = field(default_factory=list)
    all_reduce: dict[int, list[float]] = field(default_factory=dict)


class SmallEncoder(nn.Module):
    """Classifies sequences by the last state of their first token. BERT's layers with MiniLM's width.

    `forward` takes int64 tensors `tokens` (batch, length) and `labels` (batch,), and returns the loss, an fp32
    scalar.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Parameter(torch.zeros(length, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        states = self.layers(self.words(tokens) + self.positions)
        return nn.functional.cross_entropy(self.head(states[:, 0]), labels)


class Trainer:
    """A rank's model, with a DistributedDataParallel around the same model for each of its groups."""

    def __init__(self, length: int) -> None:
        torch.manual_seed(0)
        self.length = length
        self.model = SmallEncoder(length).train()
        self.bytes = sum(parameter.numel() * 4 for parameter in self.model.parameters())
        self.embedding_bytes = self.model.words.weight.numel() * 4
        self._buffer = torch.zeros(self.bytes // 4).fill_(0)  # written, so that its pages exist
        self.optimizer = _adamw(self.model.parameters())
        self._modules: dict[Phase, nn.Module] = {}
        torch.manual_seed(1 + dist.get_rank())  # data and dropout differ between ranks
        self.use(1)

    def use(self, batch: int) -> None:
        """Train on batches of `batch` samples from now on."""
        self.batch = batch
        self.tokens = torch.randint(0, WORDS, (batch, self.length))
        self.labels = torch.randint(0, LABELS, (batch,))

    def buffer(self, size: int) -> Tensor:
        """An fp32 tensor (size / 4,) to exchange; at most as large as the gradients."""
        return self._buffer[: size // 4]

    def join(self, phase: Phase) -> None:
        """Train through the phase's group. A collective of the group."""
        megabytes = self.bytes / BUCKETS / (1 << 20)
        self._modules[phase] = DistributedDataParallel(
            self.model, process_group=phase.group, bucket_cap_mb=megabytes
        )

    def steps(self, phase: Phase, count: int) -> None:
        module = self._modules.get(phase, self.model)
        for _ in range(count):
            module(self.tokens, self.labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def gradient(self, phase: Phase) -> float:
        """The sum of one step's absolute gradients: equal on two ranks only if their gradients were averaged."""
        self._modules.get(phase, self.model)(self.tokens, self.labels).backward()
        total = sum(float(parameter.grad.double().abs().sum()) for parameter in self.model.parameters())
        self.optimizer.zero_grad(set_to_none=True)
        return total


def _adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """The fastest AdamW of this torch: fused on CPUs since 2.4. 2.0 has the argument, and refuses CPUs."""
    own = list(parameters)
    try:
        return torch.optim.AdamW(own, lr=1e-4, fused=True)
    except (TypeError, RuntimeError):
        return torch.optim.AdamW(own, lr=1e-4)


def timed(work: Callable[[], None], count: int, takes_part: bool) -> Block:
    """Time `work`, which is `count` steps or calls, on the ranks that take part. A collective of all ranks."""
    dist.barrier()
    throttled, cpu, began = throttled_seconds(), time.process_time(), time.perf_counter()
    if takes_part:
        work()
    elapsed = time.perf_counter() - began
    shares = ((time.process_time() - cpu) / elapsed, (throttled_seconds() - throttled) / elapsed)
    parts = [part for part in gather((elapsed, *shares) if takes_part else None) if part]
    seconds, cpu_share, throttled_share = (max(values) for values in zip(*parts))
    return Block(seconds / count, cpu_share, throttled_share)


def all_reduces(buffer: Tensor, group: dist.ProcessGroup | None, calls: int) -> Callable[[], None]:
    """Work that is `calls` calls of all_reduce. `buffer`: an fp32 tensor (elements,)."""

    def work() -> None:
        for _ in range(calls):
            dist.all_reduce(buffer, group=group)

    return work


def documents(measured: dict[Phase, Measurements]) -> Sequence[dict[str, Any]]:
    """The phases of the JSON document."""
    return [
        {
            "nodes": phase.nodes,
            "backend": phase.backend,
            "seconds": [block.seconds for block in found.blocks],
            "cpu_share": [round(block.cpu_share, 4) for block in found.blocks],
            "throttled_share": [round(block.throttled_share, 4) for block in found.blocks],
            "all_reduce": [{"bytes": size, "seconds": times} for size, times in found.all_reduce.items()],
        }
        for phase, found in measured.items()
    ]
