"""Properties of the split of the cores, on hosts of any shape."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_train_stack.machine.facts import Core, NumaNode, Quota, Topology
from cpu_train_stack.plan.planner import RankPlan, plan
from cpu_train_stack.plan.threads import affinity
from tests.unit.entrypoints.plan.rank_plans import IOMP, host, place


@st.composite
def hosts(draw: st.DrawFn) -> Topology:
    """Sockets of NUMA nodes of cores of hardware threads, of which any may be allowed; any quota, or none."""
    threads = draw(st.integers(1, 2))
    sizes = draw(st.lists(st.lists(st.integers(1, 24), min_size=1, max_size=4), min_size=1, max_size=2))
    total = sum(map(sum, sizes))
    allowed = draw(st.sets(st.integers(0, total * threads - 1), min_size=1) | st.just(set(range(total * threads))))
    found: list[Core] = []
    numa: list[NumaNode] = []
    first = 0
    for socket, nodes in enumerate(sizes):
        for size in nodes:
            own = range(first, first + size)
            cpus = tuple(core + total * thread for thread in range(threads) for core in own)
            numa.append(NumaNode(len(numa), cpus, 1 << 30))
            for core in own:
                siblings = tuple(core + total * thread for thread in range(threads))
                usable = tuple(cpu for cpu in siblings if cpu in allowed)
                if usable:
                    found.append(Core(usable, siblings, socket, len(numa) - 1))
            first += size
    cpus_of_quota = draw(st.none() | st.floats(0.1, 200))
    quota = Quota(cpus_of_quota, "cpu.max") if cpus_of_quota else None
    return host(tuple(found), nodes=tuple(numa), quota=quota, online=frozenset(range(total * threads)))


def all_ranks(topology: Topology, ranks: int, backend: str) -> list[RankPlan]:
    return [plan(place(index, ranks), topology, {}, IOMP, backend) for index in range(ranks)]


@settings(deadline=None)  # up to 40 plans: slow on a busy machine
@given(topology=hosts(), ranks=st.integers(1, 40), backend=st.sampled_from(["ccl", "gloo"]))
def test_ranks_divide_what_is_allowed_without_overlap_and_leave_nothing_idle(
    topology: Topology, ranks: int, backend: str
) -> None:
    made = all_ranks(topology, ranks, backend)
    if len(topology.allowed) < ranks:
        assert all(set(one.cores) == topology.allowed and one.omp_num_threads == 1 for one in made)
        assert all("they slow each other down" in " ".join(one.warnings) for one in made)
        return
    compute = [cpu for one in made for cpu in one.cores]
    kept = [cpu for one in made for cpu in one.ccl_worker_cores]
    assert len(compute) == len(set(compute))
    assert set(compute) | set(kept) <= topology.allowed
    # A worker's whole core is kept, so that nothing else runs on its other hardware thread.
    whole = {cpu for core in topology.cores if set(core.cpus) & set(kept) for cpu in core.cpus}
    assert set(compute) | whole == topology.allowed
    assert not set(compute) & whole


@settings(deadline=None)  # up to 40 plans: slow on a busy machine
@given(topology=hosts(), ranks=st.integers(1, 40))
def test_shares_differ_by_one_core_at_most(topology: Topology, ranks: int) -> None:
    made = all_ranks(topology, ranks, "gloo")
    core_of = {cpu: core for core in topology.cores for cpu in core.cpus}
    if len(topology.cores) >= ranks:
        sizes = [len({core_of[cpu] for cpu in one.cores}) for one in made]
    elif len(topology.allowed) >= ranks:
        sizes = [len(one.cores) for one in made]
    else:
        return
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@settings(deadline=None)  # up to 40 plans: slow on a busy machine
@given(topology=hosts(), ranks=st.integers(1, 40), backend=st.sampled_from(["ccl", "gloo"]))
def test_no_cpu_has_more_threads_than_it_can_feed(topology: Topology, ranks: int, backend: str) -> None:
    core_of = {cpu: core for core in topology.cores for cpu in core.cpus}
    for one in all_ranks(topology, ranks, backend):
        own = {core_of[cpu] for cpu in one.cores}
        assert 1 <= one.omp_num_threads <= len(own)
        assert 0 <= one.dataloader_workers <= max(0, len(one.cores) - one.omp_num_threads)
        if topology.quota and len(topology.allowed) >= ranks:
            part = topology.quota.cpus / ranks
            assert one.omp_num_threads <= max(1, math.ceil(part))
            assert one.omp_num_threads + one.dataloader_workers <= max(1, math.ceil(part))
        if "KMP_AFFINITY" in one.environment:
            assert one.environment["KMP_AFFINITY"] == affinity(core.cpus[0] for core in own)
