"""The host as this process may use it, read from /proc, /sys and the control groups. Torch-free.

A test can replace the root of these folders.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.machine import cgroups, cpus, numa, processes
from cpu_train_stack.machine.facts import Topology


def read(root: Path = Path("/")) -> Topology:
    """The topology as this process sees it."""
    warnings: list[str] = []
    masks = processes.cpu_masks(root)
    limits = cgroups.read_limits(root)
    known = cpus.online(root)
    online = known or masks.own
    allowed = masks.own & online
    group = cpus.parse_cpu_list(limits.cpuset) & online or online
    allowed = allowed & group or allowed
    nodes = cpus.nodes(root, online, masks.mems)
    cores = cpus.cores(root, allowed, nodes, warnings)
    if not nodes and len({core.socket for core in cores}) > 1:
        warnings.append("/sys/devices/system/node cannot be read: each socket counts as a NUMA node")
    cpu = cpus.read_model(root)
    return Topology(
        machine=cpu.machine,
        model=cpu.model,
        features=cpu.features,
        bf16=cpus.bf16_of(os.environ, cpu),
        online=online,
        cores=cores,
        nodes=nodes,
        quota=limits.quota,
        memory_bytes=_memory_bytes(root),
        memory_limit=limits.memory,
        memory_policy=numa.current() if sum(node.memory_bytes > 0 for node in nodes) > 1 else "default",
        launcher_cpus=_without_offline(masks.launcher, known),
        agent_cpus=_without_offline(masks.agent, known),
        parent_cpus=_without_offline(masks.parent, known),
        group_cpus=group,
        warnings=(*limits.warnings, *warnings),
    )


def _without_offline(mask: frozenset[int] | None, online: frozenset[int]) -> frozenset[int] | None:
    """`mask` without the CPUs that are offline or do not exist: an unrestricted process's mask has these too."""
    return mask & online if mask is not None and online else mask


def _memory_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s*(\d+) kB", files.text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None
