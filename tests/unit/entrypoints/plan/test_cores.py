"""Dividing cores: among the ranks of a node, and among the nodes of a local cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cpu_train_stack.machine.facts import Core
from cpu_train_stack.plan.cores import divide, divide_evenly


def single(cpus: list[int]) -> list[Core]:
    return [Core((cpu,), (cpu,)) for cpu in cpus]


def split(cores: Sequence[Core], parts: int) -> list[list[int]]:
    """The CPU numbers of each part."""
    return [sorted(cpu for core in share for cpu in core.cpus) for share in divide(cores, parts)]


def test_the_longer_share_is_where_it_keeps_every_rank_on_its_socket() -> None:
    own = tuple(Core((cpu,), (cpu,), socket, socket) for cpu, socket in enumerate([0] * 7 + [1] * 8))
    assert [len(part) for part in divide(own, 2)] == [7, 8]
    assert [len(part) for part in divide(own, 4)] == [4, 3, 4, 4]


def test_a_socket_boundary_costs_more_than_a_numa_boundary() -> None:
    own = tuple(Core((cpu,), (cpu,), int(cpu > 3), int(cpu > 3) + int(cpu > 4)) for cpu in range(9))
    assert [len(part) for part in divide(own, 2)] == [4, 5]


def test_cores_are_divided_among_hundreds_of_ranks_quickly() -> None:
    own = tuple(Core((cpu,), (cpu,), cpu // 192, cpu // 48) for cpu in range(383))
    assert len(divide(own, 250)) == 250


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    ranks=st.integers(1, 24),
)
def test_no_other_choice_of_the_longer_shares_cuts_through_fewer_nodes(sizes: list[int], ranks: int) -> None:
    own = [Core((0,), (0,), node // 2, node) for node, size in enumerate(sizes) for _ in range(size)]
    if len(own) < ranks:
        return

    def cuts(parts: list[Any]) -> int:
        return sum(
            1000 * (len({core.socket for core in part}) - 1) + len({core.node for core in part}) - 1
            for part in parts
        )

    made = divide(own, ranks)
    assert [core for part in made for core in part] == own
    assert max(map(len, made)) - min(map(len, made)) <= 1
    assert cuts(made) <= cuts(divide_evenly(own, ranks))


@given(items=st.lists(st.integers(), max_size=200), parts=st.integers(1, 70))
def test_divided_parts_are_contiguous_complete_and_differ_by_one_at_most(items: list[int], parts: int) -> None:
    made = divide_evenly(items, parts)
    assert [item for part in made for item in part] == items
    assert max(map(len, made)) - min(map(len, made)) <= 1


@given(cores=st.sets(st.integers(0, 255), min_size=1), nodes=st.integers(1, 64))
def test_nodes_share_the_cores_evenly_and_each_gets_one(cores: set[int], nodes: int) -> None:
    shares = split(single(sorted(cores)), nodes)
    assert len(shares) == nodes
    assert all(shares)
    assert {core for share in shares for core in share} <= cores
    if nodes <= len(cores):
        assert sorted(core for share in shares for core in share) == sorted(cores)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_nodes_than_hardware_threads_share_cores_in_turn() -> None:
    cores = [Core((0, 2), (0, 2)), Core((1, 3), (1, 3))]
    assert split(cores, 5) == [[0, 2], [1, 3], [0, 2], [1, 3], [0, 2]]
