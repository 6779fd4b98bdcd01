"""The page of `plan --html`: which rank gets which cores, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from cpu_train_stack.cli.numbers import count
from cpu_train_stack.machine.cpus import format_cpu_list
from cpu_train_stack.machine.facts import Topology
from cpu_train_stack.page import topology
from cpu_train_stack.page.blocks import Drawing, Facts, Page, Section, Table, Texts, Tile
from cpu_train_stack.page.topology import NodePicture
from cpu_train_stack.plan.planner import RankPlan


def page(plan: RankPlan, host: Topology, node: Sequence[RankPlan], facts: Sequence[tuple[str, str]]) -> Page:
    """`node`: the plans of all ranks of the node. `facts`: of `plan`, as the terminal shows them."""
    place = plan.placement
    verdict = f"Plan: {count(place.local_world_size, 'rank')} on this node"
    variables = [[name, value] for name, value in plan.environment.items()]
    tiles = [
        Tile("ranks", str(place.world_size), f"{place.local_world_size} on this node"),
        Tile("threads", str(plan.omp_num_threads), f"of rank {place.rank}"),
        Tile("process group", plan.backend),
        Tile("bf16", plan.bf16),
    ]
    return Page(
        title=verdict,
        state="",
        verdict=verdict,
        about=host.model,
        tiles=tiles,
        notices=[Texts("Warning", [text], "warning") for text in plan.warnings],
        sections=[
            Section("node", "Cores", [*drawings("This node", host, node), *_ranks(node)]),
            Section("rank", f"Rank {place.rank}", [Facts(facts), Texts("Reasons", plan.reasons)]),
            Section("variables", "Variables", [Table("Set for the rank", ["variable", "value"], variables)]),
        ],
    )


def drawings(name: str, host: Topology, node: Sequence[RankPlan]) -> list[Drawing]:
    """The node's cores, with the rank that uses each one. Empty `node`: no ranks."""
    users = {cpu: plan.placement.local_rank for plan in node for cpu in plan.cores}
    workers = {cpu: plan.placement.local_rank for plan in node for cpu in plan.ccl_worker_cores}
    ranks = {plan.placement.local_rank: plan.placement.rank for plan in node}
    return topology.drawings([NodePicture(name, asdict(host), ranks, users, workers)])


def _ranks(node: Sequence[RankPlan]) -> list[Table]:
    columns = ["rank", "CPUs", "NUMA nodes", "threads", "oneCCL's workers", "memory", "loading processes"]
    rows = [
        [
            str(plan.placement.rank), format_cpu_list(plan.cores), format_cpu_list(plan.nodes),
            str(plan.omp_num_threads), format_cpu_list(plan.ccl_worker_cores), plan.memory_policy.mode,
            str(plan.dataloader_workers),
        ]
        for plan in node
    ]  # fmt: skip
    return [Table("Ranks of this node", columns, rows, right=(0, 3, 6))]
