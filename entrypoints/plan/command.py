"""`plan [--json]`: what a rank would get if it started here and now. Starts no rank. Torch-free.

plan                                            # this process's rank
plan --local-world-size 4                       # what if this node had four ranks
plan --local-world-size 4 --local-rank 3 --json
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace

from entrypoints.cli.errors import UsageError
from entrypoints.cli.numbers import count, whole_number
from entrypoints.cli.options import Parser, default_backend, positive_integer
from entrypoints.machine import network, topology
from entrypoints.machine.cpus import format_cpu_list
from entrypoints.machine.facts import Topology
from entrypoints.placement import detect
from entrypoints.placement.detect import DistributedEnvironment
from entrypoints.plan import planner, preload
from entrypoints.plan.planner import RankPlan

# The table shows no more ranks than this one by one.
_MOST_RANKS_SHOWN = 32
_WHAT_IF = "what-if"  # the launcher of a job that does not run


def main(argv: list[str]) -> int:
    parser = Parser("plan", "Print what a rank would get if it started here and now, and why.")
    add = parser.add_argument
    add("--json", action="store_true", help="one JSON document instead of a table")
    add("--backend", metavar="NAME", help="backend of the process group (default: %(default)s)",
        default=default_backend())  # fmt: skip
    add("--local-world-size", type=positive_integer, metavar="R", help="plan as if R ranks ran on this node")
    add("--local-rank", metavar="I", help="the rank on this node to plan for, from 0 (default: 0)")
    add("--world-size", type=positive_integer, metavar="W", help="plan as if the job had W ranks (default: R)")
    options = parser.parse_args(argv)
    place = detect.detect(os.environ)
    if options.local_world_size or options.world_size or options.local_rank:
        place = what_if(place, options.local_world_size, options.local_rank, options.world_size)
    host, libraries = topology.read(), preload.find(os.environ)
    ranks = 1 if options.json else min(place.local_world_size, _MOST_RANKS_SHOWN)
    made = _with_interface(planner.plan(place, host, os.environ, libraries, options.backend), os.environ)
    if options.json:
        print(json.dumps(made.document(), indent=2))
        return 0
    others = []
    for local_rank in range(ranks if ranks > 1 else 0):
        other = replace(place, local_rank=local_rank, rank=place.rank - place.local_rank + local_rank)
        others.append(planner.plan(other, host, os.environ, libraries, options.backend))
    print(table(made, host, others))
    return 0


def _with_interface(made: RankPlan, environ: Mapping[str, str]) -> RankPlan:
    """The plan with the interface that the process group will use, or the error that it will raise."""
    place = made.placement
    if place.world_size == 1 or place.launcher == _WHAT_IF:
        return made
    try:
        choice = network.choose(place.master_addr, place.several_nodes, environ.get(network.USERS_CHOICE, ""))
    except UsageError as error:
        return replace(made, warnings=(*made.warnings, str(error)))
    return replace(
        made, reasons=(*made.reasons, f"the ranks communicate over {choice.interface}: {choice.reason}")
    )


def what_if(
    place: DistributedEnvironment, local_world_size: int | None, local_rank: str | None, world_size: int | None
) -> DistributedEnvironment:
    """A rank of a job that does not run. Raises UsageError for impossible numbers."""
    if local_world_size is None:
        raise UsageError("plan: --local-rank and --world-size need --local-world-size (the ranks on this node)")
    index = whole_number(local_rank or "0")
    if index is None or index >= local_world_size:
        raise UsageError(
            f"plan: --local-rank is {local_rank!r}, expected an integer from 0 to {local_world_size - 1}"
        )
    return DistributedEnvironment(
        rank=index,
        world_size=world_size or local_world_size,
        local_rank=index,
        local_world_size=local_world_size,
        master_addr=place.master_addr,
        master_port=place.master_port,
        launcher=_WHAT_IF,
    )


def table(made: RankPlan, host: Topology, others: list[RankPlan]) -> str:
    """The plan for people. `others`: the plans of all ranks of the node, if there are several."""
    place, memory = made.placement, made.memory_policy
    limits = [f"{len(host.online)} CPUs online, {len(host.allowed)} allowed, {count(len(host.cores), 'core')}"]
    if host.quota:
        limits.append(f"quota {host.quota.cpus:g} CPUs")
    if host.memory_limit:
        limits.append(f"memory limit {host.memory_limit.limit_bytes / 2**30:.1f} GiB")
    rows = [
        ("rank", f"{place.rank} of {place.world_size}"),
        ("local rank", f"{place.local_rank} of {place.local_world_size} on node {place.node_rank}"),
        ("launcher", place.launcher),
        ("host", f"{host.model}: {', '.join(limits)}"),
        ("cores", f"{format_cpu_list(made.cores)} on NUMA node {format_cpu_list(made.nodes)}"),
        ("threads", str(made.omp_num_threads)),
        ("group", made.backend + _workers(made)),
        ("memory", memory.mode + (f" on NUMA node {format_cpu_list(memory.nodes)}" if memory.nodes else "")),
        ("data", count(made.dataloader_workers, "loading process", "loading processes")),
        *((f"rank {other.placement.rank}", _line(other)) for other in others),
        *(("variable", f"{name}={value}") for name, value in made.environment.items()),
        *(("preload", path) for path in made.preload),
        *(("because", reason) for reason in made.reasons),
        *(("warning", warning) for warning in made.warnings),
    ]
    return "\n".join(f"{name:<10}  {value}" for name, value in rows)


def _workers(made: RankPlan) -> str:
    return f", workers on {format_cpu_list(made.ccl_worker_cores)}" if made.ccl_worker_cores else ""


def _line(made: RankPlan) -> str:
    where = f"cores {format_cpu_list(made.cores)} on NUMA node {format_cpu_list(made.nodes)}"
    return f"{where}, {count(made.omp_num_threads, 'thread')}{_workers(made)}"
