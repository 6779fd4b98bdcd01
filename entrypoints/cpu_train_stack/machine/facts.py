"""The frozen dataclasses that describe the host as one process may use it; `topology.read` fills them. Torch-free.

CPU numbers are the kernel's. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """A physical core. `cpus`: its allowed hardware threads, lowest first; `siblings`: all online ones."""

    cpus: tuple[int, ...]
    siblings: tuple[int, ...]
    socket: int = 0
    node: int = 0


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node. `cpus`: its online CPUs, empty for a node of memory only (CXL, HBM).

    `allowed`: whether this process may take memory from it.
    """

    number: int
    cpus: tuple[int, ...]
    memory_bytes: int
    allowed: bool = True


@dataclass(frozen=True)
class Quota:
    """The container's processor time in CPUs, shared by all its processes, and the file that sets it."""

    cpus: float
    source: str


@dataclass(frozen=True)
class MemoryLimit:
    """The container's memory, shared by all its processes, and the file that sets it."""

    limit_bytes: int
    source: str


@dataclass(frozen=True)
class Topology:
    """One process's view of its host.

    `cores`: the physical cores that have an allowed CPU, ordered by socket, NUMA node and first hardware thread.
    `launcher_cpus`: the CPU mask of the launcher's process above (MPI, Slurm, Flux), `agent_cpus`: of the Python
    process (torchrun's agent) above, `parent_cpus`: of the parent process; None if there is no such process.
    `group_cpus`: the online CPUs of this process's control group, which a CPU mask may restrict further.
    `machine`, `model`, `features`: as in cpus.Cpu. `bf16`: from cpus.bf16_of, which respects ONEDNN_MAX_CPU_ISA.
    `memory_policy`: from numa.current; "default" on a host with one NUMA node.
    `warnings`: what could not be read, and the consequence.
    """

    machine: str
    model: str
    features: tuple[str, ...]
    bf16: str
    online: frozenset[int]
    cores: tuple[Core, ...]
    nodes: tuple[NumaNode, ...] = ()
    quota: Quota | None = None
    memory_bytes: int | None = None
    memory_limit: MemoryLimit | None = None
    memory_policy: str = "default"
    launcher_cpus: frozenset[int] | None = None
    agent_cpus: frozenset[int] | None = None
    parent_cpus: frozenset[int] | None = None
    group_cpus: frozenset[int] = frozenset()
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> frozenset[int]:
        """The CPUs that this process may use: affinity mask, cpuset and online CPUs."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)
