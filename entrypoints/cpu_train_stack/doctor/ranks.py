"""Checks with real ranks in this container, started like a job's, with a time limit: preloads, bf16, allreduce.

The ranks run `cpu_train_stack.doctor.probes`. A rank reports its findings in one line of standard output that
begins with MARK: the container may have no writable folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.checks import Check, CheckStatus
from cpu_train_stack.cli.interpreter import python_command
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.machine import shared_memory
from cpu_train_stack.machine.cpus import BF16_FIX, EMULATED
from cpu_train_stack.placement.launchers import LAUNCHERS, MARKS
from cpu_train_stack.plan import preload

MARK = "cpu-train-stack-doctor "
PROBES = "cpu_train_stack.doctor.probes"
# An idle machine takes two seconds for one rank and five for two. A busy machine must not fail.
SECONDS = 180.0
# Less than SECONDS, so that the backend reports its own timeout.
TIMEOUT_SECONDS = 60
# After SIGTERM, launch's agent ends its ranks within launch.agent.STOP_SECONDS.
STOP_SECONDS = 10.0
# After SIGKILL, a process that left the group may still hold the pipes.
_DRAIN_SECONDS = 2.0
RANKS = 2
# Parts of oneDNN's names for kernels that use the CPU's bf16 instructions.
NATIVE_KERNELS = ("amx", "bf16_vnni", "avx512_core_bf16", "avx512_core_fp16", "avx10")
# Makes ccl avoid shared memory that may be too small: see `shared_memory`.
TCP_ONLY = {"CCL_ATL_SHM": "0", "FI_PROVIDER": "tcp"}
# Variables of an outer job, which the doctor's own ranks do not belong to.
_OUTER_JOB = re.compile(
    r"(PET|TORCHELASTIC|SLURM|FLUX|PMI|PMIX|PALS|OMPI|MPI|MV2|HYDRA|I_MPI|GLOO|ACCELERATE)_.*"
    r"|MASTER_(ADDR|PORT)|GROUP_.*|ROLE_.*|.*_RANK(ID)?"
)
_VARIABLES = {name for launcher in LAUNCHERS for name in (*launcher.variables, *launcher.marks)}
_VARIABLES |= {mark.variable for mark in MARKS}


@dataclass(frozen=True)
class DoctorRanks:
    """The result of a command. `found`: its ranks' reports. `problem`: why it failed; empty if it did not."""

    found: tuple[dict[str, Any], ...]
    problem: str = ""


def environ(own: Mapping[str, str]) -> dict[str, str]:
    """`own` without any launcher's variables."""
    return {name: own[name] for name in own if name not in _VARIABLES and not _OUTER_JOB.fullmatch(name)}


def start(argv: Sequence[str], seconds: float, more: Mapping[str, str] | None = None) -> DoctorRanks:
    """Run `entrypoint argv...`; end all its processes after `seconds`."""
    process = subprocess.Popen(
        python_command("cpu_train_stack", list(argv)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**environ(os.environ), **(more or {})},
        start_new_session=True,  # so that killpg reaches every process, except the ranks of launch's agent
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        stdout, stderr = _end(process)
        return DoctorRanks(reports(stdout), f"not done within {seconds:g} s" + _last(stderr))
    except BaseException:
        _end(process)
        raise
    if process.returncode != 0:
        return DoctorRanks(reports(stdout), f"exit code {process.returncode}" + _last(stderr))
    return DoctorRanks(reports(stdout))


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End `process` and its children. Returns its output."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, _DRAIN_SECONDS)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            return process.communicate(timeout=seconds)
    return "", ""


def reports(stdout: str) -> tuple[dict[str, Any], ...]:
    """The documents in the lines that begin with MARK."""
    marked = (line for line in stdout.splitlines() if line.startswith(MARK))
    return tuple(json.loads(line[len(MARK) :]) for line in marked)


def report(document: Mapping[str, Any]) -> None:
    """In a rank: report the findings. A single write keeps lines of several ranks apart."""
    sys.stdout.write(MARK + json.dumps(document) + "\n")
    sys.stdout.flush()


def _last(stderr: str) -> str:
    """The most useful line: this package's own error, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    useful = [line for line in lines if line.startswith("error: ")] or lines[-1:]
    return f": {useful[0][:300]}" if useful else ""


def examine_rank(flag: str) -> list[Check]:
    """Start one rank, and check its preloads and its bf16. `flag`: as in `bf16`."""
    outcome = start(["run", "--quiet", "--backend", "gloo", "-m", PROBES, "speed"], SECONDS)  # gloo needs least
    if outcome.problem or not outcome.found:
        fix = "run a script with `entrypoint run` and read its errors"
        return [Check("a rank", CheckStatus.ERROR, f"a single rank failed: {outcome.problem or 'no output'}", fix)]
    found = outcome.found[0]
    wanted = preload.find(os.environ).paths
    return [*preloads(preload.LIBRARIES, wanted, found["mapped"]), bf16(flag, found)]


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
            checks.append(Check(name, CheckStatus.OK, f"{ours[0]} is mapped into a rank"))
        elif ours:
            detail = f"{ours[0]} exists, but a rank has not mapped it, so {library.without}"
            checks.append(
                Check(name, CheckStatus.ERROR, detail, f"check that it is built for {os.uname().machine}")
            )
        elif own:
            checks.append(Check(name, CheckStatus.OK, f"{own[0]} (your own) is mapped into a rank"))
        else:
            detail = f"{' or '.join(library.sonames)} was not found, so {library.without}"
            checks.append(Check(name, CheckStatus.WARNING, detail, library.fix))
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
        return Check("bf16", CheckStatus.WARNING, f"not faster than fp32: {detail}", BF16_FIX)
    if flag != EMULATED and kernel and not any(name in kernel for name in NATIVE_KERNELS):
        fix = "unset ONEDNN_MAX_CPU_ISA (or DNNL_MAX_CPU_ISA), which hides instructions from oneDNN"
        return Check("bf16", CheckStatus.WARNING, f"the CPU's instructions are not used: {detail}", fix)
    return Check("bf16", CheckStatus.OK, detail)


def examine_allreduce() -> list[Check]:
    """Start two ranks for each backend of the image."""
    cpus, workers = shared_memory.online_cpus(), shared_memory.workers(os.environ)
    room = shared_memory.read().free >= shared_memory.needed(RANKS, cpus, workers)
    checks = []
    for backend in ("gloo", "ccl") if packages.installed(packages.CCL) else ("gloo",):
        over_tcp = backend == "ccl" and not room
        launch = ["launch", "--nnodes", "1", "--nproc-per-node", str(RANKS), "--"]
        run = ["run", "--quiet", "--backend", backend, "--timeout", str(TIMEOUT_SECONDS)]
        outcome = start([*launch, *run, "-m", PROBES, "allreduce"], SECONDS, TCP_ONLY if over_tcp else None)
        checks.append(allreduce(backend, outcome, expect_shared_memory=backend == "ccl" and room))
    return checks


def allreduce(backend: str, outcome: DoctorRanks, expect_shared_memory: bool) -> Check:
    """`expect_shared_memory`: the backend is ccl, and shared memory is large enough."""
    name = f"allreduce {backend}"
    if outcome.problem or not outcome.found:
        fix = "fix the errors in the other lines" + (", or use --backend gloo instead" if backend == "ccl" else "")
        return Check(name, CheckStatus.ERROR, f"two ranks failed: {outcome.problem or 'no output'}", fix)
    found = outcome.found[0]
    way = "shared memory" if found["shared_memory"] else "tcp"
    if found["backend"] != backend or found["ranks"] != RANKS:
        detail = f"{count(found['ranks'], 'rank')} met over {found['backend']}, expected {RANKS} over {backend}"
        return Check(name, CheckStatus.ERROR, detail, "unset the variables that start or configure ranks")
    detail = f"correct, over {way}: {_speeds(found)}"
    if expect_shared_memory and not found["shared_memory"]:
        fix = "unset CCL_ATL_SHM and FI_PROVIDER, or read libfabric's log with FI_LOG_LEVEL=warn"
        return Check(name, CheckStatus.WARNING, f"{detail}; shared memory is large enough, but not used", fix)
    return Check(name, CheckStatus.OK, detail)


def _speeds(found: Mapping[str, Any]) -> str:
    return f"4 KB in {found['small_seconds'] * 1e3:.2f} ms, 8 MB in {found['large_seconds'] * 1e3:.1f} ms"
