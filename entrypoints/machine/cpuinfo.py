"""What kind of CPU this is, from the first entry of /proc/cpuinfo. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoints.machine.facts import EMULATED

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
# Best first. Other CPUs compute bf16 as fp32 and convert both ways.
_BF16 = ("amx_bf16", "avx512_bf16", "bf16")
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


def read(root: Path = Path("/")) -> Cpu:
    """The CPU of `root`/proc/cpuinfo. All CPUs of a host are taken to be alike."""
    try:
        with (root / "proc/cpuinfo").open() as lines:
            return parse(lines)
    except OSError:
        return parse(())


def parse(lines: Iterable[str]) -> Cpu:
    """The CPU of the first entry in `lines` of a /proc/cpuinfo."""
    fields = _first_entry(lines)
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
    """How a process with these variables computes bf16 (see Topology). `cpu`: default: this machine's."""
    return limited((cpu or read()).bf16, environ.get("ONEDNN_MAX_CPU_ISA", environ.get("DNNL_MAX_CPU_ISA", "")))


def limited(bf16: str, cap: str) -> str:
    """`bf16` under `cap`, the user's ONEDNN_MAX_CPU_ISA."""
    if cap.upper() in _BELOW_BF16:
        return EMULATED
    return "avx512_bf16" if bf16 == "amx_bf16" and cap.upper() in _BELOW_AMX else bf16


def _first_entry(lines: Iterable[str]) -> dict[str, str]:
    """Stop after the first entry: the kernel generates the file slowly on hosts with hundreds of CPUs."""
    fields: dict[str, str] = {}
    for line in lines:
        name, found, value = line.partition(":")
        if found:
            fields[name.strip()] = value.strip()
        elif fields:
            break
    return fields
