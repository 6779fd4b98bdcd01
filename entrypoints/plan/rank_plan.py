"""What one rank gets, as a value: made by `affinity.plan`, printed by `plan`, carried out by `rank`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from entrypoints.machine.numa import MemoryPolicy
from entrypoints.placement.detect import DistributedEnvironment


@dataclass(frozen=True)
class RankPlan:
    """One rank's share of its node, with a reason in words for each decision.

    `cores`: CPU numbers that the rank is bound to, hardware threads of one core among them. `nodes`: the NUMA
    nodes of those. `ccl_worker_cores`: CPUs kept for oneCCL's worker threads, none of them among `cores`.
    `environment`: every variable that will be set. `preload`: the paths added to LD_PRELOAD.
    `dataloader_workers`: processes that can load data without taking a compute thread's core.
    `backend`: the process group that this is for. `bf16`: as in Topology. Prints as JSON with `document`.
    """

    placement: DistributedEnvironment
    cores: tuple[int, ...]
    nodes: tuple[int, ...]
    omp_num_threads: int
    ccl_worker_cores: tuple[int, ...]
    memory_policy: MemoryPolicy
    dataloader_workers: int
    backend: str
    bf16: str
    environment: Mapping[str, str]
    preload: tuple[str, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    def document(self) -> dict[str, object]:
        fields = asdict(self)
        return {**fields.pop("placement"), **fields}
