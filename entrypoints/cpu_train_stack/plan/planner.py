"""The plan of one rank: cores, threads, memory, variables, preloads, and the reasons. Pure and torch-free.

`plan` computes a RankPlan, `entrypoint plan` prints it, and rank.start applies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import count, whole_number
from cpu_train_stack.machine.cpus import EMULATED, SUPPORTED_MACHINE, format_cpu_list
from cpu_train_stack.machine.facts import Topology
from cpu_train_stack.machine.numa import REFUSED, MemoryPolicy
from cpu_train_stack.placement import detect
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.placement.launchers import TORCHRUN
from cpu_train_stack.plan import ccl
from cpu_train_stack.plan.cores import Share, share_of
from cpu_train_stack.plan.notes import Notes
from cpu_train_stack.plan.preload import Preloads, compose
from cpu_train_stack.plan.threads import (
    LAUNCH_ROLE,
    explain_threads,
    openmp_variables,
    users_threads,
    warn_of_overrides,
)

# For TORCH_CPP_LOG_LEVEL: torch prints a page of C++ frames for each attempt to reach a node that is not up yet.
QUIET = "FATAL"
# A batch of text is collated in a few milliseconds: one process prepares batches ahead while another one works.
_MOST_DATALOADER_WORKERS = 2


# Where huggingface_hub keeps models, and the variables that say so.
_CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME")


@dataclass(frozen=True)
class RankPlan:
    """One rank's share of its node, with a reason in words for each decision.

    `cores`: the CPU numbers that the rank is bound to, including second hardware threads.
    `nodes`: the NUMA nodes of `cores`.
    `ccl_worker_cores`: CPUs kept for oneCCL's worker threads, not among `cores`.
    `environment`: every variable that will be set. `preload`: the paths added to LD_PRELOAD.
    `dataloader_workers`: processes that can load data without using a compute thread's core.
    `backend`: of the process group. `bf16`: as in Topology.
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
        """The JSON of `plan --json`."""
        fields = asdict(self)
        return {**fields.pop("placement"), **fields}


def plan(
    placement: DistributedEnvironment,
    topology: Topology,
    user_environ: Mapping[str, str],
    preloads: Preloads,
    backend: str,
) -> RankPlan:
    """Divide the allowed cores among the node's ranks and derive the rest. A variable that the user has set stays.

    In this order: the rank's share of the cores; of these, the cores for oneCCL's workers (`workers`) and the rest
    (`computing`); one compute thread for each of the rest, unless the user or a quota sets the number; memory,
    variables and data loading. Each decision adds its reason to `notes`.

    Raises UsageError for an invalid variable of the user, and for an unsupported machine.
    """
    if topology.machine != SUPPORTED_MACHINE:
        raise UsageError(
            f"this CPU is {topology.machine}, expected {SUPPORTED_MACHINE}: use an x86-64 machine; the images, "
            "wheels and preloads are built for it, and training under emulation takes many times longer"
        )
    notes = Notes(warnings=[*detect.warnings(placement, user_environ), *topology.warnings])
    share = share_of(placement, topology, notes)
    users_value = users_threads(placement, user_environ, notes)
    users_number = int(users_value.split(",")[0]) if users_value else None  # of nested levels, the outer one
    if placement.launcher == TORCHRUN.name and user_environ.get("ROLE_NAME") != LAUNCH_ROLE:
        notes.reasons.append(
            "torchrun: a script that torchrun starts itself becomes `run SCRIPT`, with this plan, unless "
            f"{contract.TORCHRUN} is plain"
        )
    workers = ccl.worker_cores(placement, share, backend, users_number, user_environ, notes)
    if absent := set(workers) - topology.online:
        notes.warnings.append(
            f"CCL_WORKER_AFFINITY has {format_cpu_list(absent)}, which this machine does not have: unset it, so "
            "that the plan chooses the CPUs of oneCCL's workers"
        )
    computing = tuple(core for core in share.cores if not set(workers) & set(core.cpus)) or tuple(share.cores)
    threads = users_number or min(share.most_threads, len(computing))
    explain_threads(users_value, threads, share, len(share.cores) - len(computing), notes)
    warn_of_overrides(placement, threads, user_environ, notes)
    cpus = tuple(sorted(cpu for core in computing for cpu in core.cpus))
    memory_policy = _memory_policy(share, topology, notes)

    chosen = detect.variables(placement)
    chosen["OMP_NUM_THREADS"] = users_value or str(threads)
    chosen.update(openmp_variables(share, computing, threads, user_environ, preloads, notes))
    chosen.update(ccl.worker_variables(placement, backend, workers, share, user_environ))
    loaders = _dataloader_workers(share, len(cpus), threads, user_environ, notes)
    chosen[contract.DATALOADER_WORKERS] = str(loaders)
    if "TORCH_CPP_LOG_LEVEL" not in user_environ:
        chosen["TORCH_CPP_LOG_LEVEL"] = QUIET
        notes.reasons.append(
            f"TORCH_CPP_LOG_LEVEL={QUIET}: torch raises its C++ errors as exceptions, and its log repeats them"
        )
    if (cache := user_environ.get("TRANSFORMERS_CACHE")) and not any(map(user_environ.get, _CACHES)):
        chosen[_CACHES[0]] = cache
        notes.warnings.append(
            f"TRANSFORMERS_CACHE is ignored since transformers 5: {_CACHES[0]}={cache} is set; set HF_HOME instead"
        )
    if preloads.paths:
        chosen["LD_PRELOAD"] = compose(user_environ.get("LD_PRELOAD", ""), preloads.paths)
    bf16 = "no instructions, products are computed in fp32" if topology.bf16 == EMULATED else topology.bf16
    return RankPlan(
        placement=placement,
        cores=cpus,
        nodes=tuple(sorted({core.node for core in computing})),
        omp_num_threads=threads,
        ccl_worker_cores=workers,
        memory_policy=memory_policy,
        dataloader_workers=loaders,
        backend=backend,
        bf16=topology.bf16,
        environment=chosen,
        preload=preloads.paths,
        reasons=(*notes.reasons, *preloads.reasons, f"bf16: {bf16}"),
        warnings=(*notes.warnings, *preloads.warnings),
    )


def ranks_for(topology: Topology) -> int:
    """The number of ranks that `launch --nproc-per-node auto` starts on this node.

    One for each NUMA node with allowed cores (each socket if NUMA nodes are unknown), but no more than the CPU
    quota can keep busy, and at least one.
    """
    places = len({(core.socket, core.node) for core in topology.cores})
    if topology.quota is None:
        return max(1, places)
    cores_each = len(topology.cores) / max(1, places)
    return max(1, min(places, math.ceil(topology.quota.cpus / cores_each), math.floor(topology.quota.cpus)))


def _memory_policy(share: Share, topology: Topology, notes: Notes) -> MemoryPolicy:
    """The nearest memory for a rank on one NUMA node, interleaved memory for a rank on several nodes."""
    usable = {node.number for node in topology.nodes if node.allowed and node.memory_bytes and node.cpus}
    if sum(node.memory_bytes > 0 for node in topology.nodes) < 2:
        return MemoryPolicy()
    nodes = tuple(sorted({core.node for core in share.cores} & usable))
    if topology.memory_policy == REFUSED:
        notes.reasons.append(
            "no memory policy: this container forbids it (CAP_SYS_NICE allows it); pages come from the NUMA node "
            "of the thread that touches them first, which is the same for a rank on one node"
        )
    elif topology.memory_policy != "default":
        notes.reasons.append(f"the memory policy {topology.memory_policy!r} is set already (numactl) and is kept")
    elif (share.shares_cores and len(nodes) > 1) or not nodes:
        notes.reasons.append("no memory policy: the threads move between NUMA nodes, so no node is the nearest")
    elif len(nodes) == 1:
        notes.reasons.append(
            f"memory comes from NUMA node {nodes[0]} first, and from other nodes when that node is full"
        )
        return MemoryPolicy("preferred", nodes)
    else:
        notes.reasons.append(
            f"memory comes from NUMA nodes {format_cpu_list(nodes)} in turn: the threads on all nodes read what "
            "the main thread writes, and the memory of one node would be the bottleneck"
        )
        return MemoryPolicy("interleave", nodes)
    return MemoryPolicy()


def _dataloader_workers(share: Share, cpus: int, threads: int, environ: Mapping[str, str], notes: Notes) -> int:
    """Processes that fit next to the compute threads: on second hardware threads, or on cores without a thread."""
    spare = 0 if share.crowded else math.floor(min(cpus, share.quota)) - threads
    workers = max(0, min(_MOST_DATALOADER_WORKERS, spare))
    own = environ.get(contract.DATALOADER_WORKERS, "")
    if own:
        value = whole_number(own)
        if value is None:
            raise UsageError(
                f"{contract.DATALOADER_WORKERS} is {own!r}, expected a number of processes: correct or unset it"
            )
        notes.reasons.append(f"{contract.DATALOADER_WORKERS}={own} is set by the user")
        return value
    if workers:
        notes.reasons.append(
            f"{count(workers, 'process', 'processes')} to load data: {count(cpus, 'CPU')} have room next to "
            f"{count(threads, 'thread')}"
        )
    else:
        notes.reasons.append("the main thread loads data: a process for it would take time from a compute thread")
    return workers
