"""The container's CPUs, memory, /dev/shm and limits, and the plan, compared with the needs of the ranks here."""

from __future__ import annotations

import os
import re
import resource
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path

from cpu_train_stack.cli.account import SHARED_MEMORY, TMP
from cpu_train_stack.cli.checks import Check, CheckStatus, attempt
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.machine import amx as amx_here
from cpu_train_stack.machine import shared_memory
from cpu_train_stack.machine.cpus import SUPPORTED_MACHINE, format_cpu_list
from cpu_train_stack.machine.facts import Topology
from cpu_train_stack.machine.numa import REFUSED
from cpu_train_stack.machine.shared_memory import MEBIBYTE, Space
from cpu_train_stack.plan.planner import RankPlan

GIBIBYTE = 1 << 30
# Weights, gradients, AdamW's two moments and activations of a BERT-base, and torch itself.
RANK_BYTES = 2 * GIBIBYTE
SHOWN_FEATURES = re.compile(r"amx|avx|vnni|bf16|fp16")
SHM = shared_memory.DIRECTORY
# Batches on their way from data loading workers to a rank. Batches of text are small.
DATA_LOADING_BYTES = 2 * MEBIBYTE
# A data loading worker passes each tensor as an open file. Each other rank adds a socket or two.
ENOUGH_FILES = 4096


def examine_machine(topology: Topology, ranks: int) -> list[Check]:
    """All checks of the machine. `ranks`: the wanted number on this node."""
    hidden = [
        Check("topology", CheckStatus.WARNING, text, "check what hides /proc or /sys")
        for text in topology.warnings
    ]
    found = [machine(topology), cpus(topology), quota(topology), numa(topology), memory(topology, ranks)]
    return [*found, *amx(amx_here.read()), *hidden]


def faults(topology: Topology, ranks: int) -> list[Check]:
    """The warnings and errors among the checks that take no time. `ranks`: on this node."""
    groups = (lambda: examine_machine(topology, ranks), lambda: examine_shm(ranks), examine_limits)
    found = [check for group in groups for check in attempt("container", group)]
    return [check for check in found if check.status is not CheckStatus.OK]


def machine(topology: Topology) -> Check:
    found = f"{topology.model}, {topology.machine}"
    if topology.machine != SUPPORTED_MACHINE:
        return Check(
            "CPU", CheckStatus.ERROR, found, f"use an {SUPPORTED_MACHINE} machine: the image is built for it"
        )
    shown = [feature for feature in topology.features if SHOWN_FEATURES.search(feature)]
    return Check("CPU", CheckStatus.OK, f"{found}; {' '.join(shown) or 'no vector instructions for training'}")


def amx(facts: amx_here.AmxFacts) -> list[Check]:
    """A warning if the CPU has AMX and this process may not use it, which more than halves the speed of bf16."""
    reason = amx_here.refused(facts)
    return [Check("AMX", CheckStatus.WARNING, *reason)] if reason else []


def cpus(topology: Topology) -> Check:
    """Allowed CPUs, their cores and hardware threads, and what limits them."""
    allowed, online = len(topology.allowed), len(topology.online)
    limit = "all that are online" if allowed == online else f"of {online} online, by a CPU set or an affinity mask"
    threads = max((len(core.siblings) for core in topology.cores), default=1)
    cores = f"{count(len(topology.cores), 'core')} of {count(threads, 'hardware thread')}"
    return Check(
        "CPUs", CheckStatus.OK, f"{allowed} allowed ({limit}): {format_cpu_list(topology.allowed)}; {cores}"
    )


def quota(topology: Topology) -> Check:
    """Informs only: the plan warns about a quota that is too small."""
    if topology.quota is None:
        return Check("CPU quota", CheckStatus.OK, "none")
    shared = f"{topology.quota.cpus:g} CPUs for all processes of the container"
    return Check("CPU quota", CheckStatus.OK, f"{shared} ({topology.quota.source})")


def numa(topology: Topology) -> Check:
    nodes = [node for node in topology.nodes if node.cpus]
    if len(nodes) < 2:
        return Check("NUMA", CheckStatus.OK, "one node")
    used = format_cpu_list(frozenset(core.node for core in topology.cores))
    policy = topology.memory_policy
    detail = f"{len(nodes)} nodes with CPUs, allowed CPUs on {used}; memory policy {policy}"
    if policy == REFUSED:
        fix = "start the container with docker run --cap-add SYS_NICE, so that a rank's memory stays on its node"
        return Check("NUMA", CheckStatus.WARNING, detail, fix)
    return Check("NUMA", CheckStatus.OK, detail)


def memory(topology: Topology, ranks: int) -> Check:
    limit = topology.memory_limit
    sizes = [size for size in (topology.memory_bytes, limit and limit.limit_bytes) if size]
    if not sizes:
        return Check("memory", CheckStatus.WARNING, "unknown", "check whether the container hides /proc/meminfo")
    size = min(sizes)
    source = limit.source if limit and size == limit.limit_bytes else "the machine's"
    detail = f"{size / GIBIBYTE:.1f} GiB ({source}) for {count(ranks, 'rank')}"
    if size < ranks * RANK_BYTES:
        needed = f"a BERT-base takes about {RANK_BYTES / GIBIBYTE:.0f} GiB per rank"
        fix = "raise the container's limit (docker run --memory), start fewer ranks, or train a small model"
        return Check("memory", CheckStatus.WARNING, f"{detail}: {needed}", fix)
    return Check("memory", CheckStatus.OK, detail)


def plan(found: RankPlan, reported: Iterable[str]) -> list[Check]:
    """The plan of the first rank here. `reported`: warnings that other checks report already."""
    ranks = found.placement.local_world_size
    ask = f"entrypoint plan --local-world-size {ranks} explains why"
    warnings = [text for text in found.warnings if text not in set(reported)]
    if warnings:
        return [Check("plan", CheckStatus.WARNING, text, ask) for text in warnings]
    cores, threads = count(len(found.cores), "CPU"), count(found.omp_num_threads, "thread")
    each = f"each of {ranks} ranks" if ranks > 1 else "a rank"
    return [Check("plan", CheckStatus.OK, f"{each} gets {cores} and {threads}")]


def shm(space: Space, ranks: int, cpus: int, workers: int = 1) -> Check:
    """`ranks`: the wanted number on this node. `cpus`, `workers`: as for `shared_memory.needed`."""
    found = f"{space.free // MEBIBYTE} of {space.size // MEBIBYTE} MiB free"
    if space.free < ranks * DATA_LOADING_BYTES:
        detail = f"{found}: data loading workers of {count(ranks, 'rank')} will crash"
        return Check(SHM, CheckStatus.ERROR, detail, _larger_shm(ranks, cpus, workers))
    if ranks == 1:
        return Check(SHM, CheckStatus.OK, f"{found}; a single rank on a node needs little")
    wanted = shared_memory.needed(ranks, cpus, workers)
    detail = f"{found}; backend ccl needs {wanted // MEBIBYTE} for {ranks} ranks on a host with {cpus} CPUs"
    if space.free >= wanted:
        return Check(SHM, CheckStatus.OK, detail)
    detail = f"{detail}: its ranks use tcp, which is slower"
    return Check(SHM, CheckStatus.WARNING, detail, _larger_shm(ranks, cpus, workers))


def _larger_shm(ranks: int, cpus: int, workers: int) -> str:
    size = shared_memory.option(max(ranks, 2), cpus, workers)
    return f"start the container with docker run {size} (Kubernetes: mount an emptyDir of medium Memory there)"


def examine_shm(ranks: int) -> list[Check]:
    cpus, workers = shared_memory.online_cpus(), shared_memory.workers(os.environ)
    probe = Path(SHM) / f"cpu-train-stack-doctor-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"0")
        probe.unlink()
        space = shared_memory.read()
    except OSError as error:
        detail = f"cannot be written ({error.strerror}): data loading workers need it"
        return [Check(SHM, CheckStatus.ERROR, detail, _larger_shm(ranks, cpus, workers))]
    return [shm(space, ranks, cpus, workers)]


def open_files(soft: int) -> Check:
    """`soft`: the limit in force; -1: no limit."""
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} allowed"
        return Check("open files", CheckStatus.OK, limit)
    return Check(
        "open files",
        CheckStatus.WARNING,
        f"{soft} allowed: data loading workers can run out of open files",
        "start the container with docker run --ulimit nofile=65536, or run ulimit -n 65536 "
        f"({ENOUGH_FILES} at least)",
    )


def temporary_files() -> Check:
    """torch and the launchers do not start without a folder for temporary files."""
    fix = f"start the container with docker run --tmpfs {TMP} (Kubernetes: mount an emptyDir at {TMP})"
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Check("temporary files", CheckStatus.ERROR, error.strerror or str(error), fix)
    if folder == SHARED_MEMORY and not os.access(TMP, os.W_OK):
        detail = f"in {folder}, because {TMP} is not writable: they take memory that the ranks share"
        return Check("temporary files", CheckStatus.WARNING, detail, fix)
    return Check("temporary files", CheckStatus.OK, f"{folder} is writable")


def examine_limits() -> list[Check]:
    """The limits that matter. Locked memory does not: only RDMA needs it, and tcp and shm do not use RDMA."""
    return [open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), temporary_files()]
