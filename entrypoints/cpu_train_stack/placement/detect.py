"""Which rank this process is, from the variables of the launcher that started it. Pure.

The complete set of one launcher's variables counts, never a mixture of sets or an invented number. With several
complete sets, the innermost launcher wins, in the order of launchers.LAUNCHERS. The outer launcher must be able to
have started it: it reports the same placement, it has only one rank, or it has one rank on each node (torchrun on
every task of a Slurm step, hydra's proxies started by srun) or on each node but one (Open MPI's daemons started by
srun: mpirun is the daemon of its own node). Every other combination is refused.

An inherited RANK, WORLD_SIZE or LOCAL_* that contradicts an MPI launcher or a Slurm step is refused, not replaced:
other libraries read those names first and would mix the two sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.placement.launchers import LAUNCHERS, OPEN_MPI, PLAIN, SLURM, TORCHRUN, Launcher, unplaced
from cpu_train_stack.placement.slurm import expand_nodelist, tasks_per_node

DEFAULT_MASTER_ADDR = "127.0.0.1"
SINGLE = "single"  # the launcher of a process that no launcher started
# torchrun's variables, and the fields of DistributedEnvironment.
_VARIABLES = {
    "RANK": "rank",
    "WORLD_SIZE": "world_size",
    "LOCAL_RANK": "local_rank",
    "LOCAL_WORLD_SIZE": "local_world_size",
    "GROUP_RANK": "node_rank",
    "MASTER_ADDR": "master_addr",
    "MASTER_PORT": "master_port",
}


@dataclass(frozen=True)
class DistributedEnvironment:
    """One rank's place in the job. Counts from 0; `master_addr` is a host name or address.

    `launcher` is a name from launchers.LAUNCHERS or SINGLE. Raises UsageError for impossible numbers. Nodes may
    have different numbers of ranks, so `world_size` need not be a multiple of `local_world_size`.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str = DEFAULT_MASTER_ADDR
    master_port: int = contract.MASTER_PORT
    launcher: str = SINGLE

    def __post_init__(self) -> None:
        self._expect("world_size", self.world_size, 1, None, "a job has at least one rank")
        self._expect("rank", self.rank, 0, self.world_size - 1, f"world_size is {self.world_size}")
        self._expect(
            "local_world_size", self.local_world_size, 1, self.world_size, f"world_size is {self.world_size}"
        )
        size = self.local_world_size
        self._expect("local_rank", self.local_rank, 0, size - 1, f"local_world_size is {size}")
        self._expect("local_rank", self.local_rank, 0, self.rank, f"rank is {self.rank}")
        elsewhere = self.world_size - size
        self._expect(
            "node_rank", self.node_rank, 0, min(self.rank, elsewhere), f"{elsewhere} ranks are on other nodes"
        )
        self._expect("master_port", self.master_port, 1, 65535, "a TCP port")
        if not self.master_addr or re.search(r"[\s/]", self.master_addr):
            raise UsageError(
                f"MASTER_ADDR is {self.master_addr!r}, expected the host name or address of rank 0's node"
            )

    def _expect(self, name: str, value: int, low: int, high: int | None, why: str) -> None:
        if value < low or (high is not None and value > high):
            expected = f"at least {low}" if high is None else f"{low} to {high}" if high > low else str(low)
            raise UsageError(
                f"{name} is {value}, expected {expected} ({why}; launcher: {self.launcher}): "
                "correct the launcher's options or unset its variables"
            )

    @property
    def several_nodes(self) -> bool:
        """Whether any rank runs on another node."""
        return self.world_size > self.local_world_size


class _Placement(NamedTuple):
    """The first five fields of a DistributedEnvironment, and the number of nodes."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}, local rank {self.local_rank} of {self.local_world_size}"


def detect(environ: Mapping[str, str]) -> DistributedEnvironment:
    """The rank that `environ` describes: a single rank if no launcher's variables are set.

    Raises UsageError for an incomplete set, impossible numbers, contradictory sets, a launcher that does not
    define the placement, and a missing MASTER_ADDR if the ranks are on several nodes.
    """
    started = [launcher for launcher in LAUNCHERS if launcher.started(environ)]
    complete = [launcher for launcher in started if not launcher.missing(environ)]
    if not started:
        refusal = unplaced(environ)
        if refusal:
            raise UsageError(refusal)
        single = DistributedEnvironment(
            master_addr=environ.get("MASTER_ADDR") or DEFAULT_MASTER_ADDR, master_port=master_port(environ)
        )
        _refuse_contradictions(single, environ)
        return single
    if not complete:
        raise UsageError(_nearest(started, environ).incomplete(environ))
    chosen = complete[0]
    if chosen is PLAIN and TORCHRUN in started:  # torchrun's set contains the plain one
        raise UsageError(TORCHRUN.incomplete(environ))
    placement = _placement(chosen, environ)
    environment = DistributedEnvironment(
        *placement[:5],
        master_addr=_master_addr(environ, chosen, placement.nodes),
        master_port=master_port(environ),
        launcher=chosen.name,
    )
    for outer in complete[1:]:
        if outer is not PLAIN:
            _refuse_unless_nested(chosen, placement, outer, _placement(outer, environ))
    for inner in started[: started.index(chosen)]:
        _refuse_incomplete_contradiction(inner, chosen, environment, environ)
    _refuse_contradictions(environment, environ)
    return environment


def variables(environment: DistributedEnvironment) -> dict[str, str]:
    """The variables, in torchrun's names, that a rank of this environment runs with."""
    return {name: str(getattr(environment, field)) for name, field in _VARIABLES.items()}


def from_variables(environ: Mapping[str, str], launcher: str) -> DistributedEnvironment:
    """The reverse of `variables`."""
    numbers = {field: int(environ[name]) for name, field in _VARIABLES.items() if field != "master_addr"}
    return DistributedEnvironment(**numbers, master_addr=environ["MASTER_ADDR"], launcher=launcher)


def master_port(environ: Mapping[str, str]) -> int:
    """The port where the ranks meet. Raises UsageError."""
    return _integer("MASTER_PORT", environ) if environ.get("MASTER_PORT") else contract.MASTER_PORT


def warnings(environment: DistributedEnvironment, environ: Mapping[str, str]) -> list[str]:
    """A warning if the job was probably meant to have more ranks."""
    tasks = whole_number(environ.get("SLURM_NTASKS", ""))
    if environment.launcher == SINGLE and tasks is not None and tasks > 1:
        return [
            f"Slurm allotted {tasks} tasks, but this process is not one of them and runs as a single rank: "
            "start it with srun to use all tasks"
        ]
    return []


def _nearest(started: Sequence[Launcher], environ: Mapping[str, str]) -> Launcher:
    """The launcher with the fewest missing variables: srun's pmi2 plug-in also sets some of hydra's."""
    candidates = [launcher for launcher in started if launcher is not PLAIN or TORCHRUN not in started]
    return min(candidates, key=lambda launcher: len(launcher.missing(environ)))


def _placement(launcher: Launcher, environ: Mapping[str, str]) -> _Placement:
    rank, world_size, local_rank = (
        _integer(name, environ) for name in (launcher.rank, launcher.world_size, launcher.local_rank)
    )
    if launcher is SLURM:
        return _slurm_placement(environ, rank, world_size, local_rank)
    if not launcher.local_world_size:
        return _even_placement(launcher, environ, rank, world_size, local_rank)
    local_world_size = _integer(launcher.local_world_size, environ)
    if launcher.node_rank:
        node_rank, nodes = _integer(launcher.node_rank, environ), _integer(launcher.nodes, environ)
        if not node_rank < nodes <= world_size:
            raise UsageError(
                f"{launcher.node_rank}={node_rank} with {launcher.nodes}={nodes} and {launcher.world_size}="
                f"{world_size} is impossible, expected node rank < nodes <= ranks: unset the variables of "
                f"{launcher.name}"
            )
        return _Placement(rank, world_size, local_rank, local_world_size, node_rank, nodes)
    # Check the ranges first: their message is clearer, and a size of 0 must not divide.
    DistributedEnvironment(rank, world_size, local_rank, local_world_size, launcher=launcher.name)
    if world_size % local_world_size or rank % local_world_size != local_rank:
        raise UsageError(
            launcher.uneven(f"rank {rank} of {world_size} as local rank {local_rank} of {local_world_size}")
        )
    nodes = world_size // local_world_size
    return _Placement(rank, world_size, local_rank, local_world_size, rank // local_world_size, nodes)


def _even_placement(
    launcher: Launcher, environ: Mapping[str, str], rank: int, world_size: int, local_rank: int
) -> _Placement:
    """The placement from the number of nodes alone, with the same number of ranks on each node.

    A rank cannot see how other ranks are placed. But if one node had more ranks than another, some rank there
    would fail this check, and the process group waits for all ranks.
    """
    nodes = _integer(launcher.nodes, environ)
    size = world_size // nodes if nodes else 0
    if size == 0 or world_size % nodes or rank % size != local_rank:
        raise UsageError(
            launcher.uneven(f"rank {rank} of {world_size} on {nodes} nodes as local rank {local_rank}")
        )
    return _Placement(rank, world_size, local_rank, size, rank // size, nodes)


def _slurm_placement(environ: Mapping[str, str], rank: int, world_size: int, local_rank: int) -> _Placement:
    node_rank = _integer(SLURM.node_rank, environ)
    text = environ[SLURM.local_world_size]
    counts = tasks_per_node(text)
    if sum(counts) != world_size or node_rank >= len(counts):
        raise UsageError(
            f"SLURM_STEP_TASKS_PER_NODE={text} is {sum(counts)} tasks on {len(counts)} nodes, but "
            f"SLURM_STEP_NUM_TASKS={world_size} and SLURM_NODEID={node_rank}: "
            "these are from different steps: start the job with srun"
        )
    return _Placement(rank, world_size, local_rank, counts[node_rank], node_rank, len(counts))


def _integer(name: str, environ: Mapping[str, str]) -> int:
    value = whole_number(environ[name])
    if value is None or len(environ[name]) > 9:
        raise UsageError(f"{name} is {environ[name]!r}, expected an integer, 0 or more: correct it or unset it")
    return value


def _master_addr(environ: Mapping[str, str], launcher: Launcher, nodes: int) -> str:
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    if nodes == 1:
        return DEFAULT_MASTER_ADDR
    if launcher is SLURM:
        return expand_nodelist(environ["SLURM_STEP_NODELIST"])[0]
    raise UsageError(
        f"MASTER_ADDR is not set, but the ranks are on {nodes} nodes (launcher: {launcher.name}): "
        "set MASTER_ADDR to the name or address of rank 0's node for every rank"
    )


def _refuse_unless_nested(inner: Launcher, inside: _Placement, outer: Launcher, outside: _Placement) -> None:
    same = inside[:4] == outside[:4]
    # mpirun starts Open MPI's daemons on the other nodes only.
    nodes = (inside.nodes - 1, inside.nodes) if inner is OPEN_MPI else (inside.nodes,)
    one_per_node = outside.local_world_size == 1 and outside.world_size in nodes
    if not (same or one_per_node or outside.world_size == 1):
        raise UsageError(
            f"{inner.name} reports {inside} ({inside.nodes} nodes), {outer.name} reports {outside}: expected "
            f"one launcher, or {outer.name} with one rank on each of {inner.name}'s nodes: "
            f"unset the variables of {inner.name} or of {outer.name}"
        )


def _refuse_incomplete_contradiction(
    inner: Launcher, chosen: Launcher, environment: DistributedEnvironment, environ: Mapping[str, str]
) -> None:
    for name, value in ((inner.rank, environment.rank), (inner.world_size, environment.world_size)):
        if environ.get(name) and environ[name] != str(value):
            raise UsageError(
                f"{inner.incomplete(environ)}; {name} also contradicts {chosen.name}, which reports {value}"
            )


def _refuse_contradictions(environment: DistributedEnvironment, environ: Mapping[str, str]) -> None:
    wanted = variables(environment)
    wrong = [name for name in wanted if environ.get(name) and environ[name] != wanted[name]]
    if wrong:
        found = " ".join(f"{name}={environ[name]}" for name in wrong)
        expected = " ".join(f"{name}={wanted[name]}" for name in wrong)
        if environment.launcher == SINGLE:
            raise UsageError(
                f"found {found}, but no launcher's variables, expected {expected} for a single rank: "
                f"unset {' '.join(wrong)}"
            )
        raise UsageError(
            f"found {found}, but {environment.launcher} reports {expected}: unset {' '.join(wrong)}, or start "
            f"without {environment.launcher}"
        )
