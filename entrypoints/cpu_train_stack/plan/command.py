"""`plan [--json] [--html FILE]`: what a rank would get if it started here and now. Starts no rank. Torch-free.

plan                                            # this process's rank
plan --local-world-size 4                       # what if this node had four ranks
plan --local-world-size 4 --local-rank 3 --json
plan --local-world-size 4 --html /output/plan.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import count, whole_number
from cpu_train_stack.cli.options import (
    default_backend,
    integer,
    option,
    parse_options,
    positive_integer,
    ranks_of_a_node,
)
from cpu_train_stack.machine import network, topology
from cpu_train_stack.machine.cpus import format_cpu_list
from cpu_train_stack.machine.facts import Topology
from cpu_train_stack.page import render
from cpu_train_stack.placement import detect
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.placement.launchers import SLURM
from cpu_train_stack.plan import page, planner, preload
from cpu_train_stack.plan.planner import RankPlan
from cpu_train_stack.plan.preload import Preloads

# The table shows no more ranks than this one by one.
_MOST_RANKS_SHOWN = 32
_WHAT_IF = "what-if"  # the launcher of a job that does not run


@dataclass(frozen=True)
class PlanOptions:
    """The command line of `plan`."""

    as_json: bool = option("--json", "one JSON document instead of a table", False)
    html: str = option("--html", render.HTML_HELP, "", metavar="FILE")
    backend: str = option(
        "--backend", "backend of the process group (default: %(default)s)", default_backend(), metavar="NAME"
    )
    local_world_size: int | None = option(
        "--local-world-size", "plan as if R ranks ran on this node", type=ranks_of_a_node, metavar="R"
    )
    local_rank: int | None = option(
        "--local-rank", "the rank on this node to plan for, from 0 (default: 0)", type=integer(0), metavar="I"
    )
    world_size: int | None = option(
        "--world-size", "plan as if the job had W ranks (default: R)", type=positive_integer, metavar="W"
    )


def main(argv: list[str]) -> int:
    description = "Print what a rank would get if it started here and now, and why."
    options = parse_options(PlanOptions, argv, "plan", description)
    if options.local_world_size or options.world_size or options.local_rank is not None:
        # Beside a running job (kubectl exec), the launcher's variables are incomplete.
        place = detect.detect({name: value for name, value in os.environ.items() if name.startswith("MASTER_")})
        place = what_if(place, options.local_world_size, options.local_rank, options.world_size)
    else:
        place = detect.detect(os.environ)
    host, libraries = topology.read(), preload.find(os.environ)

    def plan_for(rank: DistributedEnvironment) -> RankPlan:
        return planner.plan(rank, host, os.environ, libraries, options.backend)

    plan = _with_interface(plan_for(place), os.environ)
    ranks = [plan_for(replace(place, local_rank=i, rank=n)) for i, n in enumerate(_ranks_here(place, os.environ))]
    if options.as_json:
        print(json.dumps(plan.document(), indent=2))
    else:
        print(table(plan, host, ranks if len(ranks) > 1 else []))
    if options.html:
        render.save(page.page(plan, host, ranks, facts(plan, host)), Path(options.html))
    return 0


def _ranks_here(place: DistributedEnvironment, environ: Mapping[str, str]) -> list[int]:
    """The ranks of this node, by local rank. srun may place ranks in any order."""
    first = place.rank - place.local_rank
    listed = environ.get("SLURM_GTIDS", "") if place.launcher == SLURM.name else ""
    found = [number for number in map(whole_number, listed.split(",")) if number is not None]
    is_known = len(found) == place.local_world_size and found[place.local_rank] == place.rank
    return found if is_known else [*range(first, first + place.local_world_size)]


def _with_interface(plan: RankPlan, environ: Mapping[str, str]) -> RankPlan:
    """The plan with the interface that the process group will use, or the error that it will raise."""
    place = plan.placement
    if place.world_size == 1 or place.launcher == _WHAT_IF:
        return plan
    try:
        choice = network.choose(place.master_addr, place.several_nodes, environ.get(network.USERS_CHOICE, ""))
    except UsageError as error:
        return replace(plan, warnings=(*plan.warnings, str(error)))
    return replace(
        plan, reasons=(*plan.reasons, f"the ranks communicate over {choice.interface}: {choice.reason}")
    )


def what_if(
    place: DistributedEnvironment, local_world_size: int | None, local_rank: int | None, world_size: int | None
) -> DistributedEnvironment:
    """A rank of a job that does not run. Raises UsageError for impossible numbers."""
    if local_world_size is None:
        raise UsageError("plan: --local-rank and --world-size need --local-world-size (the ranks on this node)")
    index = local_rank or 0
    if index >= local_world_size:
        raise UsageError(f"plan: --local-rank is {index}, expected an integer from 0 to {local_world_size - 1}")
    return DistributedEnvironment(
        rank=index,
        world_size=world_size or local_world_size,
        local_rank=index,
        local_world_size=local_world_size,
        master_addr=place.master_addr,
        master_port=place.master_port,
        launcher=_WHAT_IF,
    )


def node(host: Topology, local_world_size: int, environ: Mapping[str, str]) -> list[RankPlan]:
    """The plans of all ranks, if so many started on this host. Raises UsageError."""
    ranks = (what_if(DistributedEnvironment(), local_world_size, rank, None) for rank in range(local_world_size))
    return [planner.plan(rank, host, environ, Preloads(), default_backend()) for rank in ranks]


def table(plan: RankPlan, host: Topology, node: Sequence[RankPlan]) -> str:
    """The plan for people. `node`: the plans of all ranks of the node, if there are several."""
    rows = [
        *facts(plan, host),
        *((f"rank {rank.placement.rank}", _line(rank)) for rank in node[:_MOST_RANKS_SHOWN]),
        *(("variable", f"{name}={value}") for name, value in plan.environment.items()),
        *(("preload", path) for path in plan.preload),
        *(("because", reason) for reason in plan.reasons),
        *(("warning", warning) for warning in plan.warnings),
    ]
    return "\n".join(f"{name:<10}  {value}" for name, value in rows)


def facts(plan: RankPlan, host: Topology) -> list[tuple[str, str]]:
    """The rank's place, host and share."""
    place, memory = plan.placement, plan.memory_policy
    limits = [f"{len(host.online)} CPUs online, {len(host.allowed)} allowed, {count(len(host.cores), 'core')}"]
    if host.quota:
        limits.append(f"quota {host.quota.cpus:g} CPUs")
    if host.memory_limit:
        limits.append(f"memory limit {host.memory_limit.limit_bytes / 2**30:.1f} GiB")
    return [
        ("rank", f"{place.rank} of {place.world_size}"),
        ("local rank", f"{place.local_rank} of {place.local_world_size} on node {place.node_rank}"),
        ("launcher", place.launcher),
        ("host", f"{host.model}: {', '.join(limits)}"),
        ("cores", f"{format_cpu_list(plan.cores)} on NUMA node {format_cpu_list(plan.nodes)}"),
        ("threads", str(plan.omp_num_threads)),
        ("group", plan.backend + _workers(plan)),
        ("memory", memory.mode + (f" on NUMA node {format_cpu_list(memory.nodes)}" if memory.nodes else "")),
        ("data", count(plan.dataloader_workers, "loading process", "loading processes")),
    ]


def _workers(plan: RankPlan) -> str:
    return f", workers on {format_cpu_list(plan.ccl_worker_cores)}" if plan.ccl_worker_cores else ""


def _line(plan: RankPlan) -> str:
    where = f"cores {format_cpu_list(plan.cores)} on NUMA node {format_cpu_list(plan.nodes)}"
    return f"{where}, {count(plan.omp_num_threads, 'thread')}{_workers(plan)}"
