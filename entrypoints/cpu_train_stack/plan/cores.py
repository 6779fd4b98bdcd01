"""Which of the node's cores one rank gets, and how much processor time. Pure and torch-free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from cpu_train_stack.cli.numbers import count
from cpu_train_stack.machine.cpus import format_cpu_list
from cpu_train_stack.machine.facts import Core, Topology
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.placement.launchers import FLUX, HYDRA, JSM, MVAPICH2, OPEN_MPI, PALS, PLAIN, SLURM, TORCHRUN
from cpu_train_stack.plan.notes import Notes

T = TypeVar("T")

# Under a quota, one more thread pays off if it uses at least a fifth more processor time: threads wait for paused
# threads. With a quota of 1.2 or 1.5 CPUs, two threads computed a tenth less than one per second of CPU time.
_WORTH_A_THREAD = 0.2
# The launchers that bind ranks themselves.
_BINDING = {launcher.name for launcher in (OPEN_MPI, MVAPICH2, HYDRA, PALS, FLUX, JSM, SLURM)}
# Crossing from one socket to another is slower than crossing between two NUMA nodes of one socket.
_SOCKET_COST = 1000


@dataclass(frozen=True)
class Share:
    """One rank's part. `cores`: the physical cores it may use.

    `quota`: its processor time in CPUs, inf without a limit. `crowded`: other ranks use the same cores, because
    there are more ranks than CPUs. `smallest`, `largest`: the sizes, in cores, of the node's smallest and largest
    share, for decisions that all ranks must make alike. A rank that is bound already knows only its own size.
    `sharing`: how many ranks, at least, are bound to these cores; `quota` is then a part of the cores.
    """

    cores: Sequence[Core]
    quota: float
    crowded: bool
    smallest: int
    largest: int
    sharing: int = 1

    @property
    def limited(self) -> bool:
        """Whether the quota allows fewer threads than there are cores."""
        return self.quota < len(self.cores)

    @property
    def limited_by_ranks(self) -> bool:
        """Whether its processor time is limited by ranks that are bound to the same cores, not by a quota."""
        return self.sharing > 1 and self.quota == len(self.cores) / self.sharing

    @property
    def shares_cores(self) -> bool:
        """Whether other processes run on these cores: ranks of this node or, under a quota, other containers."""
        return self.crowded or self.limited

    def can_spare(self, cores: int, threads: int) -> bool:
        """Whether every rank of the node can keep `cores` free of its `threads` and of other ranks."""
        return not self.crowded and self.quota >= self.largest and self.smallest - threads >= cores

    @property
    def most_threads(self) -> int:
        """Compute threads that the share can run: one for each core, fewer under a smaller quota."""
        if self.crowded:
            return 1
        if not self.limited:
            return len(self.cores)
        full = math.floor(self.quota + 1e-9)
        more = self.quota - full + 1e-9 >= _WORTH_A_THREAD * max(full, 1)
        return min(len(self.cores), max(1, full + more))


def share_of(environment: DistributedEnvironment, topology: Topology, notes: Notes) -> Share:
    """The share of the rank `environment`. Notes the reasons, and warnings if ranks disturb each other."""
    ranks = environment.local_world_size
    shares, index, sharing, crowded = _shares(environment, topology, notes)
    cores, sizes = shares[index], [len(share) for share in shares]
    quota = topology.quota.cpus / ranks if topology.quota else math.inf
    time = min(quota, len(cores) / sharing) if sharing > 1 else quota
    share = Share(cores, time, crowded, min(sizes), max(sizes), sharing)
    if topology.quota is None or quota >= len(cores):
        return share
    notes.reasons.append(
        f"the container's CPU quota is {topology.quota.cpus:g} CPUs ({topology.quota.source})"
        + (f", shared by {ranks} ranks: {quota:g} for each" if ranks > 1 else "")
    )
    if quota < 1:
        notes.warnings.append(
            f"{count(ranks, 'rank')} on this node, but the container's CPU quota is {topology.quota.cpus:g}: less "
            "than one CPU for each, so the kernel pauses them: start fewer ranks or raise the quota"
        )
    notes.reasons.append(
        f"bound to all cores of its share ({count(len(cores), 'core')}), not fewer: a quota gives time, not "
        "dedicated cores, so the kernel moves the threads to idle cores"
    )
    return share


def _binder(environment: DistributedEnvironment, topology: Topology) -> tuple[str, frozenset[int]]:
    """The program that has bound this rank to some of its launcher's CPUs, and all of these CPUs; else empty."""
    name = environment.launcher
    if name == TORCHRUN.name:  # torchrun binds nothing: a command between the agent and the rank does
        outer, who = topology.agent_cpus, "the command that torchrun started"
    elif name == PLAIN.name:
        outer, who = topology.parent_cpus, "the command that started this rank"
    else:
        outer, who = topology.launcher_cpus, name
    return (who, outer) if outer is not None and topology.allowed < outer else ("", frozenset())


def divide(cores: Sequence[Core], parts: int) -> list[Sequence[Core]]:
    """`cores`, in Topology's order, in `parts` shares.

    The shares are contiguous, differ by at most one core, and stay within a NUMA node and a socket if possible.
    With fewer cores than parts, the shares are hardware threads. With fewer threads than parts, each share is one
    core, in turn.
    """
    if parts <= len(cores):
        return _divide_cores(cores, parts)
    threads = [Core((cpu,), core.siblings, core.socket, core.node) for core in cores for cpu in core.cpus]
    if parts <= len(threads):
        return [_joined(share) for share in divide_evenly(threads, parts)]
    return [[cores[part % len(cores)]] for part in range(parts)]


def divide_evenly(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """`items` in contiguous shares whose sizes differ by at most one, longer shares first."""
    size, longer = divmod(len(items), parts)
    ends = list(accumulate(size + (part < longer) for part in range(parts)))
    return [items[start:end] for start, end in zip([0, *ends], ends)]


def _divide_cores(cores: Sequence[Core], parts: int) -> list[Sequence[Core]]:
    """Shares as in `divide`. Needs a core for each part.

    Ranks wait for each other in every step, so equal sizes come first: a share has `size` cores, and `longer` of
    the shares have one more. Dynamic programming chooses these so that the shares cross as few boundaries of
    sockets and NUMA nodes as possible. It goes through the shares from first to last. A state is the number of
    longer shares so far, which is all that the rest depends on: it determines where the next share starts. For
    each state, only the ends of the shares with the fewest crossings are kept, and of equally good ones those
    with the longer shares first, as in `divide_evenly`. The result is the state with `longer` longer shares.
    """
    size, longer = divmod(len(cores), parts)
    sockets = list(accumulate((a.socket != b.socket for a, b in zip(cores, cores[1:])), initial=0))
    nodes = list(accumulate((a.node != b.node for a, b in zip(cores, cores[1:])), initial=0))

    def crossings(start: int, end: int) -> int:
        return _SOCKET_COST * (sockets[end - 1] - sockets[start]) + nodes[end - 1] - nodes[start]

    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for _ in range(parts):
        extended: dict[int, tuple[int, tuple[int, ...]]] = {}
        for before, (crossed, ends) in best.items():
            for more in (1, 0) if before < longer else (0,):
                end = ends[-1] + size + more
                total = crossed + crossings(ends[-1], end)
                if before + more not in extended or total < extended[before + more][0]:
                    extended[before + more] = (total, (*ends, end))
        best = extended
    ends = best[longer][1]
    return [cores[start:end] for start, end in zip(ends, ends[1:])]


def _joined(threads: Sequence[Core]) -> tuple[Core, ...]:
    """Joins the hardware threads of each core into one Core."""
    by_core: dict[tuple[int, ...], Core] = {}
    for thread in threads:
        before = by_core.get(thread.siblings)
        cpus = (*before.cpus, *thread.cpus) if before else thread.cpus
        by_core[thread.siblings] = Core(cpus, thread.siblings, thread.socket, thread.node)
    return tuple(by_core.values())


def _shares(
    environment: DistributedEnvironment, topology: Topology, notes: Notes
) -> tuple[Sequence[Sequence[Core]], int, int, bool]:
    """The shares of the node's cores that this rank knows, the index of its own, `sharing` and `crowded`.

    Four cases: the rank is bound already, it is alone on its node, there are fewer CPUs than ranks, or it gets its
    part of `divide`.
    """
    cores, ranks, allowed = topology.cores, environment.local_world_size, topology.allowed
    who, outer = _binder(environment, topology)
    if who:
        notes.reasons.append(f"{who} has bound this rank to {count(len(cores), 'core')} already")
        launchers = len(topology.launcher_cpus or ())
        # Open MPI binds each rank to one core if the job has one or two ranks.
        by_default = who == OPEN_MPI.name and 2 * ranks * len(allowed) <= launchers
        if launchers and (ranks == 1 or by_default):
            which = "the only rank" if ranks == 1 else f"each of the {ranks} ranks"
            notes.warnings.append(
                f"{who} has bound {which} of this node to {len(allowed)} of {launchers} CPUs: to use all of them, "
                "turn binding off (mpirun --bind-to none)"
            )
        # Equal parts of the launcher's CPUs are less than twice the mean, even if they differ by one core.
        # The parent of a rank without a launcher need not be the parent of all ranks.
        sharing = 1 if environment.launcher == PLAIN.name else max(1, ranks * len(allowed) // len(outer))
        if sharing > 1:
            fix = "to give each rank its own, turn binding off (mpirun --bind-to none, srun --cpu-bind=none)"
            notes.warnings.append(
                f"{who} has bound each of {ranks} ranks to {len(allowed)} of {len(outer)} CPUs, so at least "
                f"{sharing} ranks share these CPUs: {fix if ranks <= len(outer) else 'start fewer ranks'}"
            )
        return [cores], 0, sharing, sharing > len(cores)
    if ranks == 1:
        notes.reasons.append(f"the only rank of this node may use all of its {count(len(cores), 'core')}")
        if topology.quota is None or topology.quota.cpus >= len(cores):
            _note_nodes_and_sockets(cores, environment, topology, notes)
        return [cores], 0, 1, False
    _warn_if_launcher_is_hidden(environment, topology, notes)
    if len(allowed) < ranks:
        notes.reasons.append(f"{ranks} ranks share {count(len(allowed), 'CPU')}")
        notes.warnings.append(
            f"{ranks} ranks on this node, but only {count(len(allowed), 'CPU')} allowed: they slow each other "
            "down; start fewer ranks or allow more CPUs"
        )
        return [cores], 0, 1, True
    shares = divide(cores, ranks)
    share = shares[environment.local_rank]
    if len(cores) < ranks:
        notes.reasons.append(f"{ranks} ranks on fewer physical cores: each gets hardware threads")
    else:
        notes.reasons.append(
            f"share {environment.local_rank} of {ranks}: {count(len(share), 'core')} of the {len(cores)} allowed "
            "cores"
        )
        _note_nodes_and_sockets(share, environment, topology, notes)
    return shares, environment.local_rank, 1, False


def _warn_if_launcher_is_hidden(environment: DistributedEnvironment, topology: Topology, notes: Notes) -> None:
    """Without the launcher's CPU mask, a rank that is bound already resembles ranks that share these CPUs."""
    allowed, group, who = topology.allowed, topology.group_cpus, environment.launcher
    if who in _BINDING and topology.launcher_cpus is None and allowed < group:
        notes.warnings.append(
            f"this rank may use {len(allowed)} of {len(group)} CPUs, and no process of {who} is visible above it: "
            f"the ranks of this node divide these {len(allowed)} CPUs. If {who} has already bound each rank to "
            "its own CPUs, turn binding off (srun --cpu-bind=none, mpirun --bind-to none)"
        )


def _note_nodes_and_sockets(
    share: Sequence[Core], environment: DistributedEnvironment, topology: Topology, notes: Notes
) -> None:
    """Where the rank's cores are, on a host with several NUMA nodes or sockets."""
    nodes, sockets = {core.node for core in share}, {core.socket for core in share}
    if len(nodes) > 1:
        notes.reasons.append(f"the cores are on NUMA nodes {format_cpu_list(nodes)}")
    elif len({core.node for core in topology.cores}) > 1:
        notes.reasons.append(f"all cores are on NUMA node {format_cpu_list(nodes)}")
    if len(sockets) < 2:
        return
    where = (
        f"the cores of one rank are on sockets {format_cpu_list(sockets)}, and memory of another socket is slow: "
    )
    if environment.local_world_size == 1:
        notes.warnings.append(f"{where}start one rank for each NUMA node (launch --nproc-per-node auto)")
    else:
        notes.warnings.append(
            f"{where}start another number of ranks: {environment.local_world_size} equal shares do not fit into "
            "the sockets"
        )
