"""The banner: at most eight lines on rank 0's standard error about what the job really runs on.

Printed once the process group exists. Rank 0 gathers the reports of all ranks. The plan is `entrypoint plan`'s.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from cpu_train_stack import contract
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.numbers import count
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine import processes, shared_memory
from cpu_train_stack.machine.cpus import EMULATED
from cpu_train_stack.placement.detect import SINGLE, DistributedEnvironment
from cpu_train_stack.plan import preload

# `show` for the process's own rank; the argument is `quiet`.
Announce = Callable[[bool], None]
LINES = 8
PACKAGES = ("torch", "transformers")


@dataclass(frozen=True)
class RankReport:
    """What one rank runs on. `cpus`: the number of CPUs that it may use. `bf16`: as in Topology.

    `preloads`: the names of the preloads that it has loaded. `missing`: the names of those that it has not.
    `interface`: its group's. `wants_shared_memory`: ccl is configured to use shared memory. `shared_memory`: ccl
    uses it.
    """

    node_rank: int
    host: str
    pin: str
    cpus: int
    threads: int
    bf16: str
    preloads: Sequence[str]
    missing: Sequence[str]
    interface: str
    shared_memory: bool
    wants_shared_memory: bool


def report(
    environment: DistributedEnvironment,
    preloads: Sequence[str],
    bf16: str,
    backend: str,
    environ: Mapping[str, str],
) -> RankReport:
    """This rank's report. `preloads`: the paths that start added to LD_PRELOAD. `backend`: of its group.

    `environ`: this process's variables. LD_PRELOAD has only the user's own libraries.
    """
    import torch

    mapped = processes.mapped_files()
    wanted = [*preload.split(environ.get("LD_PRELOAD", "")), *preloads]
    absent = preload.not_loaded(wanted, mapped)
    return RankReport(
        node_rank=environment.node_rank,
        host=socket.gethostname(),
        pin=environ.get(contract.PIN, "unknown"),
        cpus=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        bf16=bf16,
        preloads=tuple(Path(path).name for path in wanted if path not in absent),
        missing=tuple(Path(path).name for path in preloads if path in absent),
        interface=environ.get("FI_TCP_IFACE" if backend == "ccl" else "GLOO_SOCKET_IFNAME", ""),
        shared_memory=shared_memory.is_in_use(mapped),
        wants_shared_memory=environ.get("CCL_ATL_SHM", "0") != "0",
    )


def lines(
    reports: Sequence[RankReport], backend: str, environment: DistributedEnvironment, versions: Mapping[str, str]
) -> list[str]:
    """The lines of the banner. `reports`: by rank. `backend`: of the group. Pure."""
    pins = sorted({rank.pin for rank in reports})
    nodes = len({rank.node_rank for rank in reports})
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    launcher = environment.launcher
    started = "no launcher" if launcher == SINGLE else f"started by {launcher}"
    bf16 = [
        "no instructions, products in fp32" if rank.bf16 == EMULATED else f"by {rank.bf16}" for rank in reports
    ]
    cpus, threads = _range(rank.cpus for rank in reports), _range(rank.threads for rank in reports)
    rows = [
        ("pin", f"{', '.join(pins)}: {installed}"),
        ("ranks", f"{len(reports)} on {count(nodes, 'node')}, {started}"),
        ("CPUs", f"{cpus} per rank, {threads} compute {'thread' if threads == '1' else 'threads'}"),
        ("bf16", _shares(bf16)),
        ("group", _transport(reports, backend, nodes)),
        ("preloads", _shares([", ".join(rank.preloads) or "none" for rank in reports])),
    ]
    warnings = _warnings(reports, backend, pins)
    room = LINES - len(rows)
    if len(warnings) > room:
        warnings = [*warnings[: room - 1], f"{'; '.join(warnings[room - 1 :])}"]
    return [f"{name:<9} {text}" for name, text in (*rows, *(("warning", text) for text in warnings))]


def show(environment: DistributedEnvironment, preloads: Sequence[str], bf16: str, quiet: bool) -> None:
    """Print the banner on rank 0, unless it is `quiet`. A collective: every rank calls it.

    `preloads`, `bf16`: as in `report`.
    """
    import torch.distributed as dist

    from cpu_train_stack.group.create import gather

    backend = dist.get_backend() if dist.is_initialized() else "created when the script needs it"
    own = report(environment, preloads, bf16, backend, os.environ)
    reports = [RankReport(**found) for found in gather(vars(own))]
    if environment.rank == 0 and not quiet:
        say("\n".join(lines(reports, backend, environment, packages.versions(PACKAGES))))


def _range(counts: Iterable[int]) -> str:
    low, *_, high = sorted(counts) * 2
    return str(low) if low == high else f"{low} to {high}"


def _shares(values: Sequence[str]) -> str:
    """The value that all ranks have, or each value with its number of ranks."""
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    return "; ".join(f"{value} on {count(ranks, 'rank')}" for value, ranks in counts.most_common())


def _transport(reports: Sequence[RankReport], backend: str, nodes: int) -> str:
    if len(reports) == 1:
        return f"{backend}, a single rank"
    interfaces = sorted({rank.interface for rank in reports if rank.interface}) or ["an unknown interface"]
    tcp = f"tcp on {', '.join(interfaces)}"
    if not any(rank.shared_memory for rank in reports):
        return f"{backend}, {tcp}"
    return f"{backend}, shared memory within a node" + (f", {tcp} between nodes" if nodes > 1 else "")


def _warnings(reports: Sequence[RankReport], backend: str, pins: Sequence[str]) -> list[str]:
    """Differences between the ranks, and what a rank lacks."""
    found = []
    if len(pins) > 1:
        found.append("the nodes run images of different pins: start the same image on every node")
    if len({rank.bf16 for rank in reports}) > 1:
        found.append("the nodes' CPUs compute bf16 in different ways: the slowest node sets the pace")
    missing = sorted({name for rank in reports for name in rank.missing})
    if missing:
        found.append(f"not loaded by every rank: {', '.join(missing)}: run entrypoint doctor")
    alone = sorted({rank.host for rank in reports if rank.wants_shared_memory and not rank.shared_memory})
    if backend == "ccl" and alone:
        found.append(f"no shared memory on {', '.join(alone)}: ranks there use tcp; /dev/shm may be too small")
    return found
