"""The lines that rank 0 prints, from the reports of all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpu_train_stack.group.banner import LINES, RankReport, lines
from cpu_train_stack.placement.detect import DistributedEnvironment

VERSIONS = {"torch": "2.13.0+cpu"}
RANK = RankReport(
    node_rank=0,
    host="node-0",
    pin="2.13",
    cpus=4,
    threads=4,
    bf16="amx_bf16",
    preloads=("libtcmalloc_minimal.so.4", "libiomp5.so"),
    missing=(),
    interface="eth0",
    shared_memory=True,
    wants_shared_memory=True,
)
ELSEWHERE = replace(RANK, node_rank=1, host="node-1")
PLACE = DistributedEnvironment(launcher="hydra", world_size=4, local_world_size=2)


def banner(
    *ranks: RankReport, backend: str = "ccl", place: DistributedEnvironment = PLACE
) -> dict[str, list[str]]:
    """The texts by the name that they begin with."""
    found: dict[str, list[str]] = {}
    printed = lines(ranks, backend, place, VERSIONS)
    assert len(printed) <= LINES
    for line in printed:
        name, text = line.split(maxsplit=1)
        found.setdefault(name, []).append(text)
    return found


def test_ranks_that_are_alike_are_six_lines() -> None:
    assert banner(RANK, RANK, ELSEWHERE, ELSEWHERE) == {
        "pin": ["2.13: torch 2.13.0+cpu"],
        "ranks": ["4 on 2 nodes, started by hydra"],
        "CPUs": ["4 per rank, 4 compute threads"],
        "bf16": ["by amx_bf16"],
        "group": ["ccl, shared memory within a node, tcp on eth0 between nodes"],
        "preloads": ["libtcmalloc_minimal.so.4, libiomp5.so"],
    }


@pytest.mark.parametrize(
    ("seen", "backend", "group"),
    [
        ((RANK,), "ccl", "ccl, a single rank"),
        ((RANK, RANK), "ccl", "ccl, shared memory within a node"),
        (
            (replace(RANK, shared_memory=False, interface="lo"),) * 2,
            "gloo",
            "gloo, tcp on lo",
        ),
        (
            (replace(RANK, shared_memory=False), replace(ELSEWHERE, shared_memory=False, interface="eno1")),
            "gloo",
            "gloo, tcp on eno1, eth0",
        ),
    ],
    ids=["alone", "one node", "gloo", "interfaces of several names"],
)
def test_the_transport_is_the_mapped_one(seen: tuple[RankReport, ...], backend: str, group: str) -> None:
    assert banner(*seen, backend=backend)["group"] == [group]


def test_ranks_that_differ_are_shown_as_a_range_and_shares() -> None:
    other = replace(ELSEWHERE, cpus=6, threads=5, bf16="emulated", preloads=())
    shown = banner(RANK, RANK, other)
    assert shown["CPUs"] == ["4 to 6 per rank, 4 to 5 compute threads"]
    assert shown["bf16"] == ["by amx_bf16 on 2 ranks; no instructions, products in fp32 on 1 rank"]
    assert shown["preloads"] == ["libtcmalloc_minimal.so.4, libiomp5.so on 2 ranks; none on 1 rank"]
    assert shown["warning"] == ["the nodes' CPUs compute bf16 in different ways: the slowest node sets the pace"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(ELSEWHERE, pin="2.8"), "images of different pins"),
        (replace(ELSEWHERE, missing=("libiomp5.so",)), "libiomp5.so"),
        (replace(ELSEWHERE, shared_memory=False), "no shared memory on node-1"),
    ],
    ids=["pins", "preload", "shared memory"],
)
def test_each_problem_is_a_warning(other: RankReport, said: str) -> None:
    (warning,) = banner(RANK, other)["warning"]
    assert said in warning


def test_unconfigured_shared_memory_is_not_reported_as_missing() -> None:
    assert "warning" not in banner(RANK, replace(ELSEWHERE, shared_memory=False, wants_shared_memory=False))


def test_all_problems_together_still_fit_in_eight_lines() -> None:
    other = replace(ELSEWHERE, pin="2.8", bf16="emulated", missing=("libiomp5.so",), shared_memory=False)
    first, rest = banner(RANK, other)["warning"]
    assert "pins" in first
    for word in ("bf16", "libiomp5.so", "shared memory"):
        assert word in rest
