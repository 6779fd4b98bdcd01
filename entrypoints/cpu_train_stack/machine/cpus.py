"""The CPUs: model, bf16 instructions, and which CPUs share a core, a NUMA node and a socket. Torch-free."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.machine.facts import Core, NumaNode

SUPPORTED_MACHINE = "x86_64"
# The features by which oneDNN selects its training kernels, in the names of Linux. arm64 uses different names.
FEATURES = (
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "amx_fp16",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "avx2",
    "bf16",
    "sve",
)
# Best first. Other CPUs emulate bf16: they convert to fp32, compute, and convert back.
_BF16 = ("amx_bf16", "avx512_bf16", "bf16")
EMULATED = "emulated"
BF16_FIX = "train without --bf16, or use an Intel Xeon since Sapphire Rapids or an AMD CPU since Zen 4"
# oneDNN's ONEDNN_MAX_CPU_ISA hides instructions above its value.
_BELOW_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}
_BELOW_AMX = {"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"}


@dataclass(frozen=True)
class Cpu:
    """`machine`: "x86_64", "aarch64", ... `features`: the CPU's subset of FEATURES.

    `bf16`: the CPU's best bf16 instructions, or EMULATED; ONEDNN_MAX_CPU_ISA does not affect it (see `bf16_of`).
    """

    machine: str
    model: str
    features: tuple[str, ...]
    bf16: str


def read_model(root: Path = Path("/")) -> Cpu:
    """The CPU of `root`/proc/cpuinfo. All CPUs of a host are assumed to be of the same model."""
    try:
        with (root / "proc/cpuinfo").open() as lines:
            return parse_model(lines)
    except OSError:
        return parse_model(())


def parse_model(lines: Iterable[str]) -> Cpu:
    """The CPU of the first entry in `lines` of a /proc/cpuinfo."""
    fields = first_entry(lines)
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    # An image for one architecture under emulation shows the host's own entry: uname would hide it.
    machine = "x86_64" if "flags" in fields else "aarch64" if "CPU implementer" in fields else os.uname().machine
    return Cpu(
        machine=machine,
        model=fields.get("model name", "unknown"),
        features=tuple(feature for feature in FEATURES if feature in flags),
        bf16=next((feature for feature in _BF16 if feature in flags), EMULATED),
    )


def bf16_of(environ: Mapping[str, str], cpu: Cpu | None = None) -> str:
    """How a process with these variables computes bf16: "amx_bf16", "avx512_bf16", "bf16" (arm64) or EMULATED.

    No other code decides this. `cpu`: by default, this machine's.
    """
    bf16 = (cpu or read_model()).bf16
    limit = environ.get("ONEDNN_MAX_CPU_ISA", environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    if limit in _BELOW_BF16:
        return EMULATED
    return "avx512_bf16" if bf16 == "amx_bf16" and limit in _BELOW_AMX else bf16


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's list format: "0-2,8" is {0, 1, 2, 8}."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The reverse of `parse_cpu_list`: {0, 1, 2, 8} is "0-2,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def online(root: Path) -> frozenset[int]:
    """The online CPUs; if /sys is hidden, all CPUs in /proc/cpuinfo."""
    shown = files.text(root / "sys/devices/system/cpu/online")
    return parse_cpu_list(shown) if shown else frozenset(_cpuinfo_places(root))


def nodes(root: Path, online_cpus: frozenset[int], mems_allowed: frozenset[int]) -> tuple[NumaNode, ...]:
    """The NUMA nodes by number, including nodes without CPUs; empty if /sys shows none."""
    found = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        number = int(folder.name[4:])
        own = parse_cpu_list(files.text(folder / "cpulist")) & online_cpus
        size = re.search(r"MemTotal:\s*(\d+) kB", files.text(folder / "meminfo"))
        kib = int(size[1]) if size else 0
        found.append(NumaNode(number, tuple(sorted(own)), kib * 1024, number in mems_allowed))
    return tuple(sorted(found, key=lambda node: node.number))


def cores(
    root: Path, allowed: frozenset[int], numa: tuple[NumaNode, ...], warnings: list[str]
) -> tuple[Core, ...]:
    """The physical cores of the `allowed` CPUs, ordered by socket, NUMA node and first hardware thread.

    The kernel does not list offline CPUs as siblings.
    """
    node_of = {cpu: node.number for node in numa for cpu in node.cpus}
    places: Mapping[int, tuple[int, int]] | None = None
    groups: dict[frozenset[int], Core] = {}
    for cpu in sorted(allowed):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # The first file exists since Linux 5.1, the second is its older name.
        listed = files.text(folder / "core_cpus_list") or files.text(folder / "thread_siblings_list")
        socket = files.text(folder / "physical_package_id").strip()
        if not listed:
            if places is None:
                places = _cpuinfo_places(root)
                warnings.append(
                    f"{folder.relative_to(root)} cannot be read: cores are taken from /proc/cpuinfo"
                    if places
                    else "neither /sys nor /proc/cpuinfo shows which CPUs share a core: each CPU counts as a core"
                )
            place = places.get(cpu, (0, -1 - cpu))  # a CPU without an entry is a core
            same = {other for other, where in places.items() if where == place} | {cpu}
            listed, socket = format_cpu_list(same), str(place[0])
        siblings = parse_cpu_list(listed)
        if siblings not in groups:
            groups[siblings] = Core(
                cpus=tuple(sorted(siblings & allowed)),
                siblings=tuple(sorted(siblings)),
                # -1 in some virtual machines: unknown.
                socket=max(0, int(socket or 0)),
                node=node_of.get(cpu, 0),
            )
    return tuple(sorted(groups.values(), key=lambda core: (core.socket, core.node, core.siblings)))


def first_entry(lines: Iterable[str]) -> dict[str, str]:
    """Stop after the first entry: the kernel generates the file slowly on hosts with hundreds of CPUs."""
    fields: dict[str, str] = {}
    for line in lines:
        name, found, value = line.partition(":")
        if found:
            fields[name.strip()] = value.strip()
        elif fields:
            break
    return fields


def _cpuinfo_places(root: Path) -> dict[int, tuple[int, int]]:
    """Socket and core number of each CPU in /proc/cpuinfo."""
    places = {}
    for block in files.text(root / "proc/cpuinfo").strip().split("\n\n"):
        fields = first_entry(block.splitlines())
        if fields.get("processor", "").isdigit():
            cpu = int(fields["processor"])
            places[cpu] = (int(fields.get("physical id", 0)), int(fields.get("core id", -1 - cpu)))
    return places
