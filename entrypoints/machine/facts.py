"""What of a host a process may use: the frozen facts that `topology.read` returns. Torch-free.

CPU numbers are the kernel's own. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

EMULATED = "emulated"
SUPPORTED_MACHINE = "x86_64"


@dataclass(frozen=True)
class Core:
    """A physical core. `cpus`: its allowed hardware threads, lowest first; `siblings`: all that are online."""

    cpus: tuple[int, ...]
    siblings: tuple[int, ...]
    socket: int = 0
    node: int = 0


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node. `cpus`: all that are online, empty for memory alone (CXL, HBM).

    `allowed`: whether this process may take memory from it.
    """

    number: int
    cpus: tuple[int, ...]
    memory_bytes: int
    allowed: bool = True


@dataclass(frozen=True)
class Quota:
    """Processor time that all processes of the container share, in CPUs, and the file that says so."""

    cpus: float
    source: str


@dataclass(frozen=True)
class MemoryLimit:
    """Memory that all processes of the container share, and the file that says so."""

    limit_bytes: int
    source: str


@dataclass(frozen=True)
class Interface:
    """A network interface. `speed_mbits` is None where the driver does not say."""

    name: str
    addresses: tuple[str, ...]
    is_loopback: bool
    is_up: bool
    mtu: int
    speed_mbits: int | None = None


@dataclass(frozen=True)
class Route:
    """The way to `master_addr`: its address, this host's own address on the way, and the interface."""

    master_addr: str
    address: str
    source: str
    interface: str


@dataclass(frozen=True)
class Topology:
    """One process's view of its host.

    `cores`: the physical cores that have an allowed CPU, ordered by socket, NUMA node and first hardware thread.
    `launcher_cpus`: the CPUs of the MPI or Slurm process that started this one, `agent_cpus`: those of the Python
    (torchrun's agent) that did, `parent_cpus`: those of whatever did; None where there is none.
    `bf16`: "amx_bf16", "avx512_bf16", or "emulated" (correct, but slower than fp32), within ONEDNN_MAX_CPU_ISA.
    `features`: those of cpuinfo.FEATURES that the CPU has. `machine`: "x86_64", "aarch64", ...
    `memory_policy`: "default", the name of the policy in force, or "refused" (the container forbids reading it).
    `route` is None where it was not asked for. `warnings`: what could not be read, and what that means.
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
    shm_bytes: int | None = None
    memory_policy: str = "default"
    interfaces: tuple[Interface, ...] = ()
    route: Route | None = None
    launcher_cpus: frozenset[int] | None = None
    agent_cpus: frozenset[int] | None = None
    parent_cpus: frozenset[int] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> frozenset[int]:
        """The CPUs that this process may run on: affinity mask, cpuset and online CPUs."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)


@dataclass(frozen=True)
class MemoryPolicy:
    """Where the rank's memory comes from: `mode` "default", "preferred" or "interleave", on `nodes`."""

    mode: str = "default"
    nodes: tuple[int, ...] = ()
