"""What of this host the process may use, read from /proc, /sys and the control groups. Torch-free.

All of it is read under a root that a test can replace; addresses of interfaces and routes are this machine's own
and are read under the real root only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from entrypoints.cli.errors import UsageError
from entrypoints.machine import ancestors, cgroup_limits, cpuinfo, cpus, network
from entrypoints.machine.facts import Topology

REAL_ROOT = Path("/")


def read(root: Path = REAL_ROOT, master_addr: str | None = None) -> Topology:
    """The topology as this process sees it. `master_addr`: read the route to it too, which may ask DNS."""
    warnings: list[str] = []
    masks = ancestors.read(root)
    limits = cgroup_limits.read(root)
    switched_on = cpus.online(root) or masks.own
    # The mask names CPUs that are not there: a process that nobody restricts has all that the kernel could hold.
    allowed = masks.own & switched_on
    allowed = allowed & cpus.parse_cpu_list(limits.cpuset) or allowed
    numa = cpus.nodes(root, switched_on, masks.mems)
    cores = cpus.cores(root, allowed, numa, warnings)
    if not numa and len({core.socket for core in cores}) > 1:
        warnings.append("/sys/devices/system/node cannot be read: sockets are taken for NUMA nodes")
    cpu = cpuinfo.read(root)
    route = None
    if master_addr is not None:
        try:
            route = network.route(master_addr)
        except UsageError as error:
            warnings.append(str(error))
    return Topology(
        machine=cpu.machine,
        model=cpu.model,
        features=cpu.features,
        bf16=cpuinfo.bf16_of(os.environ, cpu),
        online=switched_on,
        cores=cores,
        nodes=numa,
        quota=limits.quota,
        memory_bytes=_memory_bytes(root),
        memory_limit=limits.memory,
        shm_bytes=_shm_bytes(root, warnings),
        memory_policy=_memory_policy(sum(node.memory_bytes > 0 for node in numa)),
        interfaces=network.describe(root),
        route=route,
        launcher_cpus=masks.launcher,
        agent_cpus=masks.agent,
        parent_cpus=masks.parent,
        warnings=(*limits.warnings, *warnings),
    )


def _memory_bytes(root: Path) -> int | None:
    try:
        found = re.search(r"^MemTotal:\s*(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _shm_bytes(root: Path, warnings: list[str]) -> int | None:
    folder = root / "dev" / "shm"
    try:
        size = os.statvfs(folder)
    except OSError as error:
        warnings.append(f"{folder} cannot be read ({error.strerror}): ranks of one node may need it")
        return None
    return size.f_blocks * size.f_frsize


def _memory_policy(nodes_with_memory: int) -> str:
    if nodes_with_memory < 2:  # there is nothing to choose
        return "default"
    from entrypoints.machine import numa as memory_policy  # ctypes takes its time to import

    return memory_policy.current()
