"""The container's share of its host, compared with the ranks planned here. Pure: see `topology.read`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from entrypoints.cli.numbers import count
from entrypoints.doctor.checks import Check, Status
from entrypoints.machine.cpus import SUPPORTED_MACHINE, format_cpu_list
from entrypoints.machine.facts import Topology
from entrypoints.machine.numa import REFUSED
from entrypoints.plan.planner import RankPlan

GIBIBYTE = 1 << 30
# Weights, gradients, the two moments of AdamW and activations of a BERT-base, beside torch itself.
RANK_BYTES = 2 * GIBIBYTE
SHOWN_FEATURES = re.compile(r"amx|avx|vnni|bf16|fp16")


def examine(topology: Topology, ranks: int) -> list[Check]:
    """All checks of the machine. `ranks`: wanted on this node."""
    hidden = [
        Check("topology", Status.WARNING, text, "check what hides /proc or /sys") for text in topology.warnings
    ]
    return [machine(topology), cpus(topology), quota(topology), numa(topology), memory(topology, ranks), *hidden]


def machine(topology: Topology) -> Check:
    found = f"{topology.model}, {topology.machine}"
    if topology.machine != SUPPORTED_MACHINE:
        return Check("CPU", Status.ERROR, found, f"use an {SUPPORTED_MACHINE} machine: the image is built for it")
    shown = [feature for feature in topology.features if SHOWN_FEATURES.search(feature)]
    return Check("CPU", Status.OK, f"{found}; {' '.join(shown) or 'no vector instructions that matter'}")


def cpus(topology: Topology) -> Check:
    """Allowed CPUs, their cores and hardware threads, and what limits them."""
    allowed, online = len(topology.allowed), len(topology.online)
    limit = "all that are online" if allowed == online else f"of {online} online, by a CPU set or an affinity mask"
    threads = max((len(core.siblings) for core in topology.cores), default=1)
    cores = f"{count(len(topology.cores), 'core')} of {count(threads, 'hardware thread')}"
    return Check("CPUs", Status.OK, f"{allowed} allowed ({limit}): {format_cpu_list(topology.allowed)}; {cores}")


def quota(topology: Topology) -> Check:
    """The plan judges it."""
    if topology.quota is None:
        return Check("CPU quota", Status.OK, "none")
    shared = f"{topology.quota.cpus:g} CPUs for all processes of the container"
    return Check("CPU quota", Status.OK, f"{shared} ({topology.quota.source})")


def numa(topology: Topology) -> Check:
    nodes = [node for node in topology.nodes if node.cpus]
    if len(nodes) < 2:
        return Check("NUMA", Status.OK, "one node")
    used = format_cpu_list(frozenset(core.node for core in topology.cores))
    policy = topology.memory_policy
    detail = f"{len(nodes)} nodes with CPUs, allowed CPUs on {used}; memory policy {policy}"
    if policy == REFUSED:
        fix = "docker run --cap-add SYS_NICE lets a rank keep its memory on its own node"
        return Check("NUMA", Status.WARNING, detail, fix)
    return Check("NUMA", Status.OK, detail)


def memory(topology: Topology, ranks: int) -> Check:
    limit = topology.memory_limit
    sizes = [size for size in (topology.memory_bytes, limit and limit.limit_bytes) if size]
    if not sizes:
        return Check("memory", Status.WARNING, "unknown", "check whether the container hides /proc/meminfo")
    size = min(sizes)
    source = limit.source if limit and size == limit.limit_bytes else "the machine's"
    detail = f"{size / GIBIBYTE:.1f} GiB ({source}) for {count(ranks, 'rank')}"
    if size < ranks * RANK_BYTES:
        needed = f"a BERT-base takes about {RANK_BYTES / GIBIBYTE:.0f} GiB a rank"
        fix = "raise the container's limit (docker run --memory), start fewer ranks, or train a small model"
        return Check("memory", Status.WARNING, f"{detail}: {needed}", fix)
    return Check("memory", Status.OK, detail)


def plan(found: RankPlan, reported: Iterable[str]) -> list[Check]:
    """The plan of the first rank here. `reported`: its warnings that other checks report."""
    ranks = found.placement.local_world_size
    ask = f"entrypoint plan --local-world-size {ranks} explains why"
    warnings = [text for text in found.warnings if text not in set(reported)]
    if warnings:
        return [Check("plan", Status.WARNING, text, ask) for text in warnings]
    cores, threads = count(len(found.cores), "CPU"), count(found.omp_num_threads, "thread")
    each = f"each of {ranks} ranks" if ranks > 1 else "a rank"
    return [Check("plan", Status.OK, f"{each} gets {cores} and {threads}")]
