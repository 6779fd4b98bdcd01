"""What a job really runs on, in at most eight lines on rank 0's standard error, once its process group is made.

Each rank says what it sees of itself, and rank 0 gathers it: what was planned is `plan`'s to print.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from entrypoints import contract
from entrypoints.cli import packages
from entrypoints.cli.numbers import count
from entrypoints.machine import cpus, processes, shared_memory
from entrypoints.machine.cpus import EMULATED
from entrypoints.placement.detect import DistributedEnvironment

# `show` for the process's own rank; the argument is `quiet`.
Announce = Callable[[bool], None]
LINES = 8
PACKAGES = ("torch", "transformers")


@dataclass(frozen=True)
class Seen:
    """One rank, as it sees itself. `cores`: CPUs that it may run on. `bf16`: as in Topology.

    `preloads`: names of the libraries that it was to preload and has mapped. `missing`: those that it has not.
    `interface`: the one that its group was given. `wants_shared_memory`: ccl was told to use some;
    `shared_memory`: it has mapped some.
    """

    node_rank: int
    host: str
    pin: str
    cores: int
    threads: int
    bf16: str
    preloads: tuple[str, ...]
    missing: tuple[str, ...]
    interface: str
    shared_memory: bool
    wants_shared_memory: bool


def look(
    environment: DistributedEnvironment, preloaded: Iterable[str], backend: str, environ: Mapping[str, str]
) -> Seen:
    """This rank. `preloaded`: the paths that it was started with. `backend`: of its group."""
    import torch

    loaded = processes.mapped_files()
    there = {path: str(Path(path).resolve()) in loaded for path in preloaded}
    return Seen(
        node_rank=environment.node_rank,
        host=socket.gethostname(),
        pin=environ.get(contract.PIN, "unknown"),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        bf16=cpus.bf16_of(environ),
        preloads=tuple(Path(path).name for path, is_there in there.items() if is_there),
        missing=tuple(Path(path).name for path, is_there in there.items() if not is_there),
        interface=environ.get("FI_TCP_IFACE" if backend == "ccl" else "GLOO_SOCKET_IFNAME", ""),
        shared_memory=shared_memory.is_in_use(loaded),
        wants_shared_memory=environ.get("CCL_ATL_SHM", "0") != "0",
    )


def lines(
    seen: Sequence[Seen], backend: str, environment: DistributedEnvironment, versions: Mapping[str, str]
) -> list[str]:
    """The banner of the ranks `seen`, by rank, whose group is `backend`. Pure."""
    pins = sorted({rank.pin for rank in seen})
    nodes = len({rank.node_rank for rank in seen})
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    cores, threads = _range(rank.cores for rank in seen), _range(rank.threads for rank in seen)
    rows = [
        ("pin", f"{', '.join(pins)}: {packages}"),
        ("ranks", f"{len(seen)} on {count(nodes, 'node')}, {_launcher(environment)}"),
        ("cores", f"{cores} a rank, {threads} compute {'thread' if threads == '1' else 'threads'}"),
        ("bf16", _shares([_instructions(rank.bf16) for rank in seen])),
        ("group", _transport(seen, backend, nodes)),
        ("preloads", _shares([", ".join(rank.preloads) or "none" for rank in seen])),
    ]
    warnings = _warnings(seen, backend, pins)
    room = LINES - len(rows)
    if len(warnings) > room:
        warnings = [*warnings[: room - 1], f"{'; '.join(warnings[room - 1 :])}"]
    return [f"{name:<9} {text}" for name, text in (*rows, *(("warning", text) for text in warnings))]


def show(environment: DistributedEnvironment, preloaded: Iterable[str], quiet: bool) -> None:
    """A collective: every rank calls it, rank 0 prints unless `quiet`, which may differ between ranks."""
    import torch.distributed as dist

    backend = dist.get_backend()
    own = look(environment, preloaded, backend, os.environ)
    seen: list[Seen] = [own] * environment.world_size
    if environment.world_size > 1:
        dist.all_gather_object(seen, own)
    if environment.rank == 0 and not quiet:
        text = lines(seen, backend, environment, packages.versions(PACKAGES))
        print("\n".join(text), file=sys.stderr, flush=True)


def _launcher(environment: DistributedEnvironment) -> str:
    return "no launcher" if environment.launcher == "single" else f"started by {environment.launcher}"


def _range(counts: Iterable[int]) -> str:
    low, *_, high = sorted(counts) * 2
    return str(low) if low == high else f"{low} to {high}"


def _shares(values: Sequence[str]) -> str:
    """What all have, or how many have what."""
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    return "; ".join(f"{value} on {count(ranks, 'rank')}" for value, ranks in counts.most_common())


def _instructions(bf16: str) -> str:
    return "no instructions, products in fp32" if bf16 == EMULATED else f"by {bf16}"


def _transport(seen: Sequence[Seen], backend: str, nodes: int) -> str:
    if len(seen) == 1:
        return f"{backend}, with no other rank to talk to"
    interfaces = ", ".join(sorted({rank.interface for rank in seen if rank.interface})) or "an unknown interface"
    tcp = f"tcp on {interfaces}"
    if not any(rank.shared_memory for rank in seen):
        return f"{backend}, {tcp}"
    return f"{backend}, shared memory within a node" + (f", {tcp} between nodes" if nodes > 1 else "")


def _warnings(seen: Sequence[Seen], backend: str, pins: Sequence[str]) -> list[str]:
    """What only the ranks together show, or what a rank lacks."""
    found = []
    if len(pins) > 1:
        found.append("the nodes run images of different pins: start the same one everywhere")
    if len({rank.bf16 for rank in seen}) > 1:
        found.append("the nodes' CPUs do bf16 in different ways: the slowest one sets the pace")
    missing = sorted({name for rank in seen for name in rank.missing})
    if missing:
        found.append(f"not on every rank: {', '.join(missing)}: see doctor")
    alone = sorted({rank.host for rank in seen if rank.wants_shared_memory and not rank.shared_memory})
    if backend == "ccl" and alone:
        found.append(f"no shared memory on {', '.join(alone)}, ranks there use tcp: /dev/shm may be too small")
    return found
