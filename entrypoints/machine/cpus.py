"""CPUs from /sys: which are online, which are one core, on which socket and NUMA node they are. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from entrypoints.machine.facts import Core, NumaNode


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's list format: "0-2,8" is {0, 1, 2, 8}."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: frozenset[int] | tuple[int, ...]) -> str:
    """The reverse of `parse_cpu_list`: {0, 1, 2, 8} is "0-2,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def online(root: Path) -> frozenset[int]:
    """The CPUs that are switched on; all that /proc/cpuinfo lists where /sys is hidden."""
    try:
        return parse_cpu_list((root / "sys/devices/system/cpu/online").read_text())
    except OSError:
        return frozenset(_cpuinfo_places(root))


def nodes(root: Path, switched_on: frozenset[int], mems_allowed: frozenset[int]) -> tuple[NumaNode, ...]:
    """The NUMA nodes by number, those without CPUs too; empty where /sys has none of them."""
    found = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        number = int(folder.name[4:])
        own = parse_cpu_list(_text(folder / "cpulist")) & switched_on
        size = re.search(r"MemTotal:\s*(\d+) kB", _text(folder / "meminfo"))
        kib = int(size[1]) if size else 0
        found.append(NumaNode(number, tuple(sorted(own)), kib * 1024, number in mems_allowed))
    return tuple(sorted(found, key=lambda node: node.number))


def cores(
    root: Path, allowed: frozenset[int], numa: tuple[NumaNode, ...], warnings: list[str]
) -> tuple[Core, ...]:
    """The physical cores of the `allowed` CPUs, ordered by socket, NUMA node and first hardware thread.

    CPUs that are switched off are nobody's siblings: the kernel leaves them out.
    """
    node_of = {cpu: node.number for node in numa for cpu in node.cpus}
    places: Mapping[int, tuple[int, int]] | None = None
    groups: dict[frozenset[int], Core] = {}
    for cpu in sorted(allowed):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # The first name is the kernel's since 5.1, the second its older one.
        listed = _text(folder / "core_cpus_list") or _text(folder / "thread_siblings_list")
        socket = _text(folder / "physical_package_id")
        if not listed:
            if places is None:
                places = _cpuinfo_places(root)
                warnings.append(
                    f"{folder.relative_to(root)} cannot be read: cores are taken from /proc/cpuinfo"
                    if places
                    else "neither /sys nor /proc/cpuinfo says which CPUs are one core: each counts as a core"
                )
            place = places.get(cpu, (0, -1 - cpu))  # one that nobody describes is a core of its own
            same = {other for other, where in places.items() if where == place} | {cpu}
            listed, socket = format_cpu_list(frozenset(same)), str(place[0])
        siblings = parse_cpu_list(listed)
        if siblings not in groups:
            groups[siblings] = Core(
                cpus=tuple(sorted(siblings & allowed)),
                siblings=tuple(sorted(siblings)),
                # Virtual machines may say -1: unknown.
                socket=max(0, int(socket or 0)),
                node=node_of.get(cpu, 0),
            )
    return tuple(sorted(groups.values(), key=lambda core: (core.socket, core.node, core.siblings)))


def _cpuinfo_places(root: Path) -> dict[int, tuple[int, int]]:
    """Socket and core number of each CPU as /proc/cpuinfo has them."""
    places = {}
    for block in _text(root / "proc/cpuinfo").split("\n\n"):
        fields: dict[str, str] = dict(re.findall(r"^(.*?)[ \t]*:[ \t]*(.*)$", block, re.MULTILINE))
        if fields.get("processor", "").isdigit():
            cpu = int(fields["processor"])
            places[cpu] = (int(fields.get("physical id", 0)), int(fields.get("core id", -1 - cpu)))
    return places


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
