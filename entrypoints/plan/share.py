"""Which of the node's cores one rank gets, and how much processor time. Pure and torch-free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from entrypoints.cli.numbers import count
from entrypoints.machine.cpus import format_cpu_list
from entrypoints.machine.facts import Core, Topology
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.placement.launchers import PLAIN, TORCHRUN
from entrypoints.plan.division import divide, shares
from entrypoints.plan.notes import Notes

# A further thread under a quota is worth it where it brings a fifth more processor time: threads wait for those
# that are paused, and two on a quota of 1.2 or 1.5 CPUs did a tenth less in a second of it than one.
_WORTH_A_THREAD = 0.2


@dataclass(frozen=True)
class Share:
    """One rank's part. `cores`: the physical cores it may use.

    `quota`: its processor time in CPUs, inf where that is unlimited. `crowded`: other ranks use the same cores,
    since there are more ranks than CPUs. `smallest`, `largest`: the numbers of cores in the node's smallest and
    largest share, for decisions that all ranks must make alike. A rank bound by its launcher knows only its own.
    """

    cores: Sequence[Core]
    quota: float
    crowded: bool
    smallest: int
    largest: int

    @property
    def limited(self) -> bool:
        """Whether the quota feeds fewer threads than there are cores."""
        return self.quota < len(self.cores)

    @property
    def shares_cores(self) -> bool:
        """Whether others run on these cores too: ranks of this node or, under a quota, other containers."""
        return self.crowded or self.limited

    def can_spare(self, cores: int, threads: int) -> bool:
        """Whether every rank of the node can keep `cores` free of its `threads` and of other ranks."""
        return not self.crowded and self.quota >= self.largest and self.smallest - threads >= cores

    @property
    def most_threads(self) -> int:
        """Compute threads that the share can feed: one for each core, fewer where the quota is smaller."""
        if self.crowded:
            return 1
        if not self.limited:
            return len(self.cores)
        whole = math.floor(self.quota + 1e-9)
        more = self.quota - whole + 1e-9 >= _WORTH_A_THREAD * max(whole, 1)
        return min(len(self.cores), max(1, whole + more))


def of_rank(environment: DistributedEnvironment, topology: Topology, notes: Notes) -> Share:
    """The share of the rank `environment`; says why, and warns where ranks get in each other's way."""
    ranks = environment.local_world_size
    node, index, crowded = _divided(environment, topology, notes)
    cores, sizes = node[index], [len(each) for each in node]
    part = topology.quota.cpus / ranks if topology.quota else math.inf
    share = Share(cores, part, crowded, min(sizes), max(sizes))
    if topology.quota is None or not share.limited:
        return share
    notes.reasons.append(
        f"the container's CPU quota is {topology.quota.cpus:g} CPUs ({topology.quota.source})"
        + (f", shared by {ranks} ranks: {part:g} for each" if ranks > 1 else "")
    )
    if part < 1:
        notes.warnings.append(
            f"{count(ranks, 'rank')} on this node, but the container's CPU quota is {topology.quota.cpus:g}: less "
            "than one CPU for each, so they stand still a part of the time: start fewer ranks or raise the quota"
        )
    notes.reasons.append(
        f"bound to no more than the node's cores that are its share ({count(len(cores), 'core')}): a quota gives "
        "time, not dedicated cores, so the kernel moves the threads to idle cores"
    )
    return share


def binder(environment: DistributedEnvironment, topology: Topology) -> str:
    """Who has bound this rank to a subset of its launcher's CPUs; empty if nobody has."""
    name = environment.launcher
    if name == TORCHRUN.name:  # binds nothing: what is bound between the agent and the rank, the user has bound
        outer, who = topology.agent_cpus, "the command that torchrun started"
    elif name == PLAIN.name:
        outer, who = topology.parent_cpus, "the command that started this rank"
    else:
        outer, who = topology.launcher_cpus, name
    return who if outer is not None and topology.allowed < outer else ""


def _divided(
    environment: DistributedEnvironment, topology: Topology, notes: Notes
) -> tuple[Sequence[Sequence[Core]], int, bool]:
    """The known shares of the node's cores, the index of this rank's, and whether other ranks use it too."""
    cores, ranks, allowed = topology.cores, environment.local_world_size, topology.allowed
    who = binder(environment, topology)
    if who:
        notes.reasons.append(f"{who} has bound this rank to {count(len(cores), 'core')} already")
        if ranks == 1 and topology.launcher_cpus:
            notes.warnings.append(
                f"{who} has bound the only rank of this node to {len(allowed)} of {len(topology.launcher_cpus)} "
                "CPUs: to use all of them, turn binding off (mpirun --bind-to none)"
            )
        return [cores], 0, False
    if ranks == 1:
        notes.reasons.append(f"the only rank of this node may use all of its {count(len(cores), 'core')}")
        if topology.quota is None or topology.quota.cpus >= len(cores):
            _say_where(cores, environment, topology, notes)
        return [cores], 0, False
    if len(allowed) < ranks:
        notes.reasons.append(f"{ranks} ranks share {count(len(allowed), 'CPU')}")
        notes.warnings.append(
            f"{ranks} ranks on this node, but only {count(len(allowed), 'CPU')} allowed: they slow each other "
            "down; start fewer ranks or allow more CPUs"
        )
        return [cores], 0, True
    if len(cores) < ranks:
        threads = [Core((cpu,), core.siblings, core.socket, core.node) for core in cores for cpu in core.cpus]
        notes.reasons.append(f"{ranks} ranks on fewer physical cores: each gets hardware threads")
        joined = [_joined(divide(threads, ranks, index)) for index in range(ranks)]
        return joined, environment.local_rank, False
    node = shares(cores, ranks)
    share = node[environment.local_rank]
    notes.reasons.append(
        f"share {environment.local_rank} of {ranks}: {count(len(share), 'core')} of the {len(cores)} allowed cores"
    )
    _say_where(share, environment, topology, notes)
    return node, environment.local_rank, False


def _joined(threads: Sequence[Core]) -> tuple[Core, ...]:
    """Hardware threads of one core in one Core again."""
    by_core: dict[tuple[int, ...], Core] = {}
    for thread in threads:
        before = by_core.get(thread.siblings)
        cpus = (*before.cpus, *thread.cpus) if before else thread.cpus
        by_core[thread.siblings] = Core(cpus, thread.siblings, thread.socket, thread.node)
    return tuple(by_core.values())


def _say_where(
    share: Sequence[Core], environment: DistributedEnvironment, topology: Topology, notes: Notes
) -> None:
    """Where the rank's cores are, on a node with several NUMA nodes or sockets."""
    nodes, sockets = frozenset(core.node for core in share), frozenset(core.socket for core in share)
    if len(nodes) > 1:
        notes.reasons.append(f"they are on NUMA nodes {format_cpu_list(nodes)}")
    elif len({core.node for core in topology.cores}) > 1:
        notes.reasons.append(f"all of them are on NUMA node {format_cpu_list(nodes)}")
    if len(sockets) < 2:
        return
    where = (
        f"the cores of one rank are on sockets {format_cpu_list(sockets)}, and memory of another socket is slow: "
    )
    if environment.local_world_size == 1:
        notes.warnings.append(f"{where}start one for each NUMA node (launch --nproc-per-node auto)")
    else:
        notes.warnings.append(f"{where}{environment.local_world_size} equal shares do not fit into the sockets")
