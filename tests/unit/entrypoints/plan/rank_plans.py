"""Plans of ranks on hosts of any shape, for the tests."""

from __future__ import annotations

from typing import Any

from cpu_train_stack.machine.facts import Core, Topology
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan.planner import RankPlan, plan
from cpu_train_stack.plan.preload import Preloads

IOMP = Preloads(("/usr/lib/libtcmalloc_minimal.so.4", "/opt/venv/lib/libiomp5.so"), ("found both",), ())
NO_LIBRARY = Preloads()


def place(local_rank: int = 0, local_world_size: int = 1, launcher: str = "hydra") -> DistributedEnvironment:
    return DistributedEnvironment(local_rank, local_world_size, local_rank, local_world_size, launcher=launcher)


def cores(count: int, threads: int = 1) -> tuple[Core, ...]:
    numbers = [tuple(core + count * thread for thread in range(threads)) for core in range(count)]
    return tuple(Core(cpus, cpus) for cpus in numbers)


def host(own: tuple[Core, ...], **facts: Any) -> Topology:
    known: dict[str, Any] = {"machine": "x86_64", "model": "", "features": (), "bf16": "amx_bf16"}
    return Topology(
        **{**known, "online": frozenset(cpu for core in own for cpu in core.siblings), "cores": own, **facts}
    )


def make(
    where: DistributedEnvironment,
    own: tuple[Core, ...],
    environ: dict[str, str] | None = None,
    preloads: Preloads = NO_LIBRARY,
    backend: str = "gloo",
    **facts: Any,
) -> RankPlan:
    return plan(where, host(own, **facts), environ or {}, preloads, backend)
