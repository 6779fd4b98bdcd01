"""The preloads of one real rank, and whether bf16 is faster. Pure except for `examine`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from entrypoints.doctor import ranks
from entrypoints.doctor.checks import Check, Status
from entrypoints.machine.cpus import EMULATED
from entrypoints.plan import preload

MODULE = "entrypoints.doctor.probe"
SECONDS = 180.0  # an idle machine takes two
# Parts of oneDNN's names for kernels that use the CPU's bf16 instructions.
NATIVE_KERNELS = ("amx", "bf16_vnni", "avx512_core_bf16", "avx512_core_fp16", "avx10")


def preloads(libraries: Iterable[preload.Library], wanted: Iterable[str], mapped: Iterable[str]) -> list[Check]:
    """One check per library. `wanted`: the plan's paths. `mapped`: the files in the rank's memory."""
    files = set(mapped)
    checks = []
    for library in libraries:
        ours = [path for path in wanted if Path(path).name in library.sonames]
        # torch's bundled libgomp stays idle behind a preload: ignore it.
        own = [
            file
            for file in sorted(files)
            if Path(file).name.startswith(library.rivals) and "torch/lib" not in file
        ]
        name = f"preload {library.name}"
        if ours and not preload.not_loaded(ours[:1], files):
            checks.append(Check(name, Status.OK, f"{ours[0]} is mapped into a rank"))
        elif ours:
            detail = f"{ours[0]} exists, but a rank has not mapped it, so {library.without}"
            checks.append(Check(name, Status.ERROR, detail, f"check that it is built for {os.uname().machine}"))
        elif own:
            checks.append(Check(name, Status.OK, f"{own[0]} (your own) is mapped into a rank"))
        else:
            detail = f"{' or '.join(library.sonames)} was not found, so {library.without}"
            checks.append(Check(name, Status.WARNING, detail, library.fix))
    return checks


def kernel_name(log: str) -> str:
    """`brg_matmul:avx512_core_bf16` from oneDNN's verbose log: v1,primitive,exec,cpu,matmul,NAME,..."""
    for line in log.splitlines():
        fields = line.split(",")
        for kind in ("matmul", "inner_product"):
            if "exec" in fields and kind in fields:
                return fields[fields.index(kind) + 1]
    return ""


def bf16(flag: str, found: Mapping[str, Any]) -> Check:
    """`flag`: the CPU's bf16 instructions, as in Cpu. `found`: the probe's report."""
    half, single, kernel = found["bf16_gflops"], found["fp32_gflops"], kernel_name(found["onednn"])
    speed = f"{half:.0f} GFLOP/s in bf16, {single:.0f} in fp32 ({half / single:.1f} times)"
    detail = f"{flag}; {kernel or 'unknown kernel'}: {speed}"
    if half < single:
        fix = "train without --bf16, or on Intel since Cooper Lake or AMD since Zen 4"
        return Check("bf16", Status.WARNING, f"slower than fp32: {detail}", fix)
    if flag != EMULATED and kernel and not any(name in kernel for name in NATIVE_KERNELS):
        fix = "unset ONEDNN_MAX_CPU_ISA (or DNNL_MAX_CPU_ISA), which hides instructions from oneDNN"
        return Check("bf16", Status.WARNING, f"the CPU's instructions are not used: {detail}", fix)
    return Check("bf16", Status.OK, detail)


def examine(flag: str) -> list[Check]:
    """Starts the rank. `flag`: as in `bf16`."""
    outcome = ranks.start(["run", "--quiet", "--backend", "gloo", "-m", MODULE], SECONDS)  # which needs the least
    if outcome.problem or not outcome.found:
        fix = "run a script with `entrypoint run` and read its errors"
        return [Check("a rank", Status.ERROR, f"a single rank failed: {outcome.problem or 'no output'}", fix)]
    found = outcome.found[0]
    wanted = preload.find(os.environ).paths
    return [*preloads(preload.LIBRARIES, wanted, found["mapped"]), bf16(flag, found)]
