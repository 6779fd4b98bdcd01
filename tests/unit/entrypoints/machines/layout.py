"""Writes the files that `topology.read` reads, from a compact description of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cpu_train_stack.machine.cpus import format_cpu_list, parse_cpu_list

SPR = "avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8 avx_vnni"
ZEN5 = "avx2 avx512f avx512_bf16 avx512_vnni avx_vnni"
ICE_LAKE = "avx2 avx512f avx512_vnni"


@dataclass(frozen=True)
class Machine:
    """A host, and one process's place on it.

    `nodes`: cores of each NUMA node, by socket. `numbering` of CPUs: "blocks", first threads of all cores, then
    second ones (servers); "adjacent", the threads of a core side by side (Hyper-V); "alternating", cores of two
    sockets in turn (some vendors' firmware). `offline`, `mask`, `cpuset`: CPU lists; an empty mask is all that the
    kernel could hold, which is more than there are. `memory_only`: NUMA nodes without CPUs behind the others.
    `groups`: control group files, by path below /sys/fs/cgroup. `mounts`: lines of mountinfo, `own`: of
    /proc/self/cgroup.
    """

    nodes: tuple[tuple[int, ...], ...]
    threads: int = 1
    numbering: str = "blocks"
    offline: str = ""
    mask: str = ""
    model: str = "Test CPU"
    flags: str = ZEN5
    arm: bool = False
    has_nodes: bool = True
    memory_only: int = 0
    own: str = "0::/\n"
    mounts: str = "30 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
    groups: Mapping[str, str] = field(default_factory=dict)

    def cores(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Socket, NUMA node and CPU numbers of each core."""
        places = []
        node = 0
        for socket, sizes in enumerate(self.nodes):
            for size in sizes:
                places += [(socket, node)] * size
                node += 1
        total = len(places)
        if self.numbering == "adjacent":
            return [
                (*place, tuple(range(i * self.threads, (i + 1) * self.threads))) for i, place in enumerate(places)
            ]
        order = list(range(total))
        if self.numbering == "alternating":
            half = total // 2
            order = [2 * i if i < half else 2 * (i - half) + 1 for i in range(total)]
        return [
            (*place, tuple(order[i] + total * thread for thread in range(self.threads)))
            for i, place in enumerate(places)
        ]


def lay_out(machine: Machine, root: Path) -> Path:
    """Write the files below `root` and return it."""
    cores = machine.cores()
    offline = parse_cpu_list(machine.offline)
    every = {cpu for _, _, cpus in cores for cpu in cpus}
    online = frozenset(every - offline)
    _write(root / "sys/devices/system/cpu/online", format_cpu_list(online))
    blocks = []
    node_cpus: dict[int, set[int]] = {}
    for index, (socket, node, cpus) in enumerate(cores):
        siblings = [cpu for cpu in cpus if cpu in online]
        for cpu in siblings:
            node_cpus.setdefault(node, set()).add(cpu)
            blocks.append((cpu, _cpuinfo(machine, cpu, socket, index)))
            folder = root / f"sys/devices/system/cpu/cpu{cpu}"
            if cpu == siblings[0]:
                _write(folder / "topology/core_cpus_list", format_cpu_list(siblings))
                _write(folder / "topology/physical_package_id", str(socket))
            else:  # the same files, which would be thousands
                folder.symlink_to(f"cpu{siblings[0]}")
    _write(root / "proc/cpuinfo", "\n".join(text for _, text in sorted(blocks)))
    if machine.has_nodes:
        numbers = sorted({node for _, node, _ in cores})
        for node in [*numbers, *range(len(numbers), len(numbers) + machine.memory_only)]:
            folder = root / f"sys/devices/system/node/node{node}"
            _write(folder / "cpulist", format_cpu_list(frozenset(node_cpus.get(node, ()))))
            _write(folder / "meminfo", f"Node {node} MemTotal:  131072000 kB\nNode {node} MemFree: 1000 kB")
    _write(root / "proc/meminfo", "MemTotal:  262144000 kB\nMemFree: 1 kB")
    (root / "dev/shm").mkdir(parents=True)
    _write(
        root / "proc/self/status",
        f"Name:\tpython\nPPid:\t0\nCpus_allowed_list:\t{machine.mask or '0-1023'}\nMems_allowed_list:\t0-63",
    )
    _write(root / "proc/self/cgroup", machine.own)
    _write(root / "proc/self/mountinfo", f"23 0 8:1 / / rw - ext4 /dev/sda1 rw\n{machine.mounts}")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for path, text in machine.groups.items():
        _write(root / "sys/fs/cgroup" / path, text)
    return root


def _cpuinfo(machine: Machine, cpu: int, socket: int, core: int) -> str:
    if machine.arm:
        return f"processor\t: {cpu}\nBogoMIPS\t: 2100.00\nFeatures\t: {machine.flags}\nCPU implementer\t: 0x41\n"
    return (
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: {machine.model}\nphysical id\t: {socket}\n"
        f"core id\t\t: {core}\nflags\t\t: fpu {machine.flags}\n"
    )


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text.rstrip()}\n")


def write_status(root: Path, allowed: str, **above: str) -> Path:
    """Writes /proc/*/status of this process and of the processes `above` it (name=mask, nearest first)."""
    chain = [("python", allowed), *above.items()]
    for index, (name, mask) in enumerate(chain):
        folder = root / "proc" / ("self" if index == 0 else str(999 + index))
        folder.mkdir(parents=True, exist_ok=True)
        parent = str(1000 + index) if index + 1 < len(chain) else "0"
        (folder / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\nCpus_allowed_list:\t{mask}\n")
    return root
