"""What one rank gets of its node: cores, threads, memory, variables, preloads, and why. Pure and torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.cli.numbers import count, whole_number
from entrypoints.machine.cpus import EMULATED, SUPPORTED_MACHINE, format_cpu_list
from entrypoints.machine.facts import Topology
from entrypoints.machine.numa import REFUSED, MemoryPolicy
from entrypoints.placement.detect import DistributedEnvironment, variables
from entrypoints.placement.detect import warnings as environment_warnings
from entrypoints.plan import ccl_workers, share
from entrypoints.plan import threads as openmp
from entrypoints.plan.notes import Notes
from entrypoints.plan.preload import Preloads, compose
from entrypoints.plan.rank_plan import RankPlan
from entrypoints.plan.share import Share
from entrypoints.plan.threads import LAUNCH_ROLE as LAUNCH_ROLE

# torch prints a page of C++ frames for each attempt to reach a node that is not up yet.
QUIET = "FATAL"
# The trainer's default for --dataloader_num_workers.
# Rows of text are put together in a few milliseconds a batch: one process is ahead, the other works.
_MOST_DATALOADER_WORKERS = 2


def plan(
    environment: DistributedEnvironment,
    topology: Topology,
    user_environ: Mapping[str, str],
    preloads: Preloads,
    backend: str,
) -> RankPlan:
    """Divide the allowed cores among the node's ranks and derive the rest. A user's own variable always wins.

    Raises UsageError for a user's variable that cannot be read, and for a machine that the stack is not made for.
    """
    if topology.machine != SUPPORTED_MACHINE:
        raise UsageError(
            f"this CPU is {topology.machine}, expected {SUPPORTED_MACHINE}: the stack's images, wheels and "
            "preloads are made for x86-64 alone, and under emulation training takes many times longer"
        )
    notes = Notes(warnings=[*environment_warnings(environment, user_environ), *topology.warnings])
    part = share.of_rank(environment, topology, notes)
    own_threads = openmp.users_threads(environment, user_environ, notes)
    fixed = int(own_threads.split(",")[0]) if own_threads else None
    workers = ccl_workers.worker_cores(environment, part, backend, fixed, user_environ, notes)
    computing = tuple(core for core in part.cores if not set(workers) & set(core.cpus)) or tuple(part.cores)
    kept = len(part.cores) - len(computing)
    threads = fixed or min(part.most_threads, len(computing))
    openmp.explain_threads(own_threads, threads, part, kept, notes)
    cpus = tuple(sorted(cpu for core in computing for cpu in core.cpus))
    memory = _memory_policy(part, topology, notes)

    chosen = variables(environment)
    chosen["OMP_NUM_THREADS"] = own_threads or str(threads)
    chosen.update(openmp.variables(part, computing, threads, user_environ, preloads, notes))
    if backend == "ccl" and environment.world_size > 1:
        chosen.update(ccl_workers.variables(workers, environment.local_world_size, user_environ))
    loaders = _dataloader_workers(part, len(cpus), threads, user_environ, notes)
    chosen[contract.DATALOADER_WORKERS] = str(loaders)
    if "TORCH_CPP_LOG_LEVEL" not in user_environ:
        chosen["TORCH_CPP_LOG_LEVEL"] = QUIET
        notes.reasons.append(
            f"TORCH_CPP_LOG_LEVEL={QUIET}: torch's C++ errors arrive as exceptions, its log repeats them"
        )
    if preloads.paths:
        chosen["LD_PRELOAD"] = compose(user_environ.get("LD_PRELOAD", ""), preloads.paths)
    bf16 = "emulated, oneDNN has no bf16 instructions to use" if topology.bf16 == EMULATED else topology.bf16
    return RankPlan(
        placement=environment,
        cores=cpus,
        nodes=tuple(sorted({core.node for core in computing})),
        omp_num_threads=threads,
        ccl_worker_cores=workers,
        memory_policy=memory,
        dataloader_workers=loaders,
        backend=backend,
        bf16=topology.bf16,
        environment=chosen,
        preload=preloads.paths,
        reasons=(*notes.reasons, *preloads.reasons, f"bf16: {bf16}"),
        warnings=(*notes.warnings, *preloads.warnings),
    )


def ranks_for(topology: Topology) -> int:
    """The ranks that `launch --nproc-per-node auto` starts on this node: one for each NUMA node with allowed
    cores, or each socket where nodes are not known; no more than the CPU quota fills, and one at least."""
    places = len({(core.socket, core.node) for core in topology.cores})
    if topology.quota is None:
        return max(1, places)
    cores_each = len(topology.cores) / max(1, places)
    return max(1, min(places, math.ceil(topology.quota.cpus / cores_each), math.floor(topology.quota.cpus)))


def _memory_policy(part: Share, topology: Topology, notes: Notes) -> MemoryPolicy:
    """Near memory for a rank on one NUMA node, all of its nodes in turn for one that reaches over several."""
    usable = {node.number for node in topology.nodes if node.allowed and node.memory_bytes and node.cpus}
    if sum(node.memory_bytes > 0 for node in topology.nodes) < 2:
        return MemoryPolicy()
    nodes = tuple(sorted({core.node for core in part.cores} & usable))
    if topology.memory_policy == REFUSED:
        notes.reasons.append(
            "no memory policy: this container forbids it (CAP_SYS_NICE allows it); pages come from the NUMA node "
            "of the thread that touches them first, which for a rank on one node is the same"
        )
    elif topology.memory_policy != "default":
        notes.reasons.append(f"the memory policy {topology.memory_policy!r} is set already (numactl) and stays")
    elif part.shares_cores or not nodes:
        notes.reasons.append(
            "no memory policy: the threads move between NUMA nodes, and their memory comes with them"
        )
    elif len(nodes) == 1:
        notes.reasons.append(
            f"memory comes from NUMA node {nodes[0]} first; from others when it is full, rather than be killed"
        )
        return MemoryPolicy("preferred", nodes)
    else:
        notes.reasons.append(
            f"memory comes from NUMA nodes {format_cpu_list(nodes)} in turn: what the main thread fills is read "
            "by the threads of all of them, and one node's memory would be the bottleneck"
        )
        return MemoryPolicy("interleave", nodes)
    return MemoryPolicy()


def _dataloader_workers(part: Share, cpus: int, threads: int, environ: Mapping[str, str], notes: Notes) -> int:
    """Processes that fit beside the compute threads: on second hardware threads, or on cores without one."""
    spare = 0 if part.crowded else math.floor(min(cpus, part.quota)) - threads
    workers = max(0, min(_MOST_DATALOADER_WORKERS, spare))
    own = environ.get(contract.DATALOADER_WORKERS, "")
    if own:
        value = whole_number(own)
        if value is None:
            raise UsageError(
                f"{contract.DATALOADER_WORKERS} is {own!r}, expected a number of processes: correct or unset it"
            )
        notes.reasons.append(f"{contract.DATALOADER_WORKERS}={own} is the user's own")
        return value
    if workers:
        where = f"beside {count(threads, 'thread')} on {count(cpus, 'CPU')}"
        notes.reasons.append(f"{count(workers, 'process', 'processes')} to load data: there is room {where}")
    else:
        notes.reasons.append(
            "data is loaded by the main thread: a process for it would take its time from a compute thread"
        )
    return workers
