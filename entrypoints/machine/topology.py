"""The host as this process may use it, read from /proc, /sys and the control groups. Torch-free.

A test can replace the root of these folders.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from entrypoints.machine import cgroups, cpus, files, numa, processes
from entrypoints.machine.facts import Topology


def read(root: Path = Path("/")) -> Topology:
    """The topology as this process sees it."""
    warnings: list[str] = []
    masks = processes.cpu_masks(root)
    limits = cgroups.read_limits(root)
    online = cpus.online(root) or masks.own
    # An unrestricted process's mask has every CPU that the kernel supports, including CPUs that do not exist.
    allowed = masks.own & online
    allowed = allowed & cpus.parse_cpu_list(limits.cpuset) or allowed
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
        launcher_cpus=masks.launcher,
        agent_cpus=masks.agent,
        parent_cpus=masks.parent,
        warnings=(*limits.warnings, *warnings),
    )


def _memory_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal:\s*(\d+) kB", files.text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None
