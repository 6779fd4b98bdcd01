"""What a rank gets: the split of the cores, the threads, and whose variable wins."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.affinity import plan
from entrypoints.division import divide, shares
from entrypoints.environment import DistributedEnvironment, variables
from entrypoints.errors import UsageError
from entrypoints.host import Core, NumaNode, Quota, Route, Topology
from entrypoints.openmp import affinity
from entrypoints.preload import Preloads
from entrypoints.rank_plan import MemoryPolicy, RankPlan

IOMP = Preloads(("/usr/lib/libtcmalloc_minimal.so.4", "/opt/venv/lib/libiomp5.so"), ("found both",), ())


def place(local_rank: int = 0, local_world_size: int = 1, launcher: str = "hydra") -> DistributedEnvironment:
    return DistributedEnvironment(local_rank, local_world_size, local_rank, local_world_size, launcher=launcher)


def cores(count: int, threads: int = 1) -> tuple[Core, ...]:
    numbers = [tuple(core + count * thread for thread in range(threads)) for core in range(count)]
    return tuple(Core(cpus, cpus) for cpus in numbers)


def host(own: tuple[Core, ...], **facts: Any) -> Topology:
    known: dict[str, Any] = {"machine": "x86_64", "model": "", "features": (), "bf16": "amx_bf16"}
    return Topology(**{**known, "online": frozenset(), "cores": own, **facts})


def make(
    where: DistributedEnvironment,
    own: tuple[Core, ...],
    environ: dict[str, str] | None = None,
    preloads: Preloads = Preloads(),  # noqa: B008 - frozen
    backend: str = "gloo",
    **facts: Any,
) -> RankPlan:
    return plan(where, host(own, **facts), environ or {}, preloads, backend)


# Properties, over hosts of any shape


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

    made = shares(own, ranks)
    assert [core for part in made for core in part] == own
    assert max(map(len, made)) - min(map(len, made)) <= 1
    assert cuts(made) <= cuts([divide(own, ranks, index) for index in range(ranks)])


@given(items=st.lists(st.integers(), max_size=200), parts=st.integers(1, 70))
def test_divided_parts_are_contiguous_complete_and_differ_by_one_at_most(items: list[int], parts: int) -> None:
    made = [divide(items, parts, index) for index in range(parts)]
    assert [item for part in made for item in part] == items
    assert max(map(len, made)) - min(map(len, made)) <= 1


# Cores


def test_the_longer_share_is_where_it_keeps_every_rank_on_its_socket() -> None:
    own = tuple(Core((cpu,), (cpu,), socket, socket) for cpu, socket in enumerate([0] * 7 + [1] * 8))
    assert [len(part) for part in shares(own, 2)] == [7, 8]
    assert [len(part) for part in shares(own, 4)] == [4, 3, 4, 4]


def test_a_sockets_end_counts_more_than_a_numa_nodes() -> None:
    own = tuple(Core((cpu,), (cpu,), int(cpu > 3), int(cpu > 3) + int(cpu > 4)) for cpu in range(9))
    assert [len(part) for part in shares(own, 2)] == [4, 5]


def test_hundreds_of_ranks_are_divided_at_once() -> None:
    own = tuple(Core((cpu,), (cpu,), cpu // 192, cpu // 48) for cpu in range(383))
    assert len(shares(own, 250)) == 250


def test_hardware_threads_of_one_core_go_to_one_rank_and_count_as_one_thread() -> None:
    made = make(place(1, 2), cores(4, threads=2))
    assert made.cores == (2, 3, 6, 7)
    assert made.omp_num_threads == 2


def test_more_ranks_than_physical_cores_share_out_hardware_threads() -> None:
    own = cores(2, threads=2)
    assert [make(place(index, 4), own).cores for index in range(4)] == [(0,), (2,), (1,), (3,)]
    assert [make(place(index, 3), own).cores for index in range(3)] == [(0, 2), (1,), (3,)]
    assert make(place(0, 3), own).omp_num_threads == 1


@pytest.mark.parametrize(
    ("launcher", "facts"),
    [
        ("hydra", {"launcher_cpus": frozenset(range(4))}),
        ("Slurm", {"launcher_cpus": frozenset(range(4))}),
        ("torchrun", {"agent_cpus": frozenset(range(4))}),
        ("environment", {"parent_cpus": frozenset(range(4))}),
    ],
)
def test_a_rank_that_is_bound_already_keeps_its_cores(launcher: str, facts: dict[str, Any]) -> None:
    made = make(place(1, 2, launcher), cores(4)[2:], **facts)
    assert made.cores == (2, 3)
    assert made.omp_num_threads == 2
    assert any("has bound this rank to 2 cores already" in reason for reason in made.reasons)


@pytest.mark.parametrize(
    ("launcher", "facts"),
    [
        ("torchrun", {"launcher_cpus": frozenset(range(8))}),  # the agent is the outer launcher's bound task
        ("torchrun", {"launcher_cpus": frozenset(range(8)), "agent_cpus": frozenset(range(4))}),
        ("environment", {"parent_cpus": frozenset(range(4)), "agent_cpus": frozenset(range(8))}),
        ("hydra", {"launcher_cpus": frozenset(range(4))}),
        ("hydra", {}),
    ],
    ids=["torchrun in a task", "torchrun in taskset", "shell in taskset", "mpirun in taskset", "nothing known"],
)
def test_ranks_that_are_bound_together_divide_what_they_are_bound_to(launcher: str, facts: dict[str, Any]) -> None:
    parts = [make(place(index, 2, launcher), cores(4), **facts).cores for index in (0, 1)]
    assert parts == [(0, 1), (2, 3)]


def test_an_only_rank_that_is_bound_to_a_part_of_the_node_is_a_warning() -> None:
    made = make(place(launcher="Open MPI"), cores(1), launcher_cpus=frozenset(range(8)))
    assert made.cores == (0,)
    assert any("to 1 of 8 CPUs" in warning for warning in made.warnings)


def test_more_ranks_than_cpus_is_a_warning() -> None:
    made = make(place(2, 3), cores(2))
    assert made.cores == (0, 1)
    assert made.omp_num_threads == 1
    assert "3 ranks on this node, but only 2 CPUs" in made.warnings[0]


# A quota


@pytest.mark.parametrize(
    ("quota", "threads"),
    [
        (0.5, 1),
        (1.0, 1),
        (1.1, 1),
        (1.2, 2),
        (1.5, 2),
        (2.0, 2),
        (2.5, 3),
        (3.5, 3),
        (10.5, 10),
        (15.5, 15),
        (16, 16),
        (99, 32),
    ],
)
def test_threads_under_a_quota(quota: float, threads: int) -> None:
    made = make(place(), cores(32), quota=Quota(quota, "cpu.max"))
    assert made.omp_num_threads == threads
    assert len(made.cores) == 32


def test_all_ranks_share_one_quota() -> None:
    made = [make(place(index, 4), cores(64), quota=Quota(8, "cpu.max")) for index in range(4)]
    assert [one.omp_num_threads for one in made] == [2, 2, 2, 2]
    assert any("shared by 4 ranks: 2 for each" in reason for reason in made[0].reasons)


def test_less_than_a_cpu_for_each_rank_is_a_warning() -> None:
    made = make(place(0, 2), cores(64), quota=Quota(1.5, "cpu.max"))
    assert made.omp_num_threads == 1
    assert "the container's CPU quota is 1.5: less than one CPU for each" in made.warnings[0]


def test_a_quota_of_all_cores_limits_nothing() -> None:
    made = make(place(), cores(4, threads=2), {}, IOMP, quota=Quota(4, "cpu.max"))
    assert made.omp_num_threads == 4
    assert made.environment["KMP_AFFINITY"] == affinity(range(4))
    assert made.dataloader_workers == 0  # the processor time is all for compute


def test_a_bound_rank_has_its_part_of_the_quota_too() -> None:
    made = make(place(1, 2), cores(4), launcher_cpus=frozenset(range(8)), quota=Quota(4, "cpu.max"))
    assert made.omp_num_threads == 2


# Memory


TWO_NODES = (NumaNode(0, (0, 1), 1 << 30), NumaNode(1, (2, 3), 1 << 30))


def on_two_nodes() -> tuple[Core, ...]:
    return tuple(Core((cpu,), (cpu,), 0, cpu // 2) for cpu in range(4))


def test_a_users_own_memory_policy_stays() -> None:
    made = make(place(0, 2), on_two_nodes(), nodes=TWO_NODES, memory_policy="bind")
    assert made.memory_policy == MemoryPolicy()
    assert any("'bind' is set already" in reason for reason in made.reasons)


def test_a_refused_memory_policy_is_said_and_does_without() -> None:
    made = make(place(0, 2), on_two_nodes(), nodes=TWO_NODES, memory_policy="refused")
    assert made.memory_policy == MemoryPolicy()
    assert any("CAP_SYS_NICE" in reason for reason in made.reasons)


def test_a_node_without_memory_or_without_permission_is_not_asked_for_it() -> None:
    empty = (NumaNode(0, (0, 1), 0), NumaNode(1, (2, 3), 1 << 30), NumaNode(2, (), 1 << 30))
    assert make(place(0, 2), on_two_nodes(), nodes=empty).memory_policy == MemoryPolicy()
    assert make(place(1, 2), on_two_nodes(), nodes=empty).memory_policy == MemoryPolicy("preferred", (1,))
    forbidden = (NumaNode(0, (0, 1), 1 << 30, allowed=False), NumaNode(1, (2, 3), 1 << 30))
    assert make(place(0, 1), on_two_nodes(), nodes=forbidden).memory_policy == MemoryPolicy("preferred", (1,))


# Threads: whose number wins


def test_the_users_threads_win_and_the_plan_says_so() -> None:
    made = make(place(), cores(4), {"OMP_NUM_THREADS": "3"})
    assert made.omp_num_threads == 3
    assert made.environment["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS=3 is the user's own" in made.reasons
    assert not made.warnings


def test_more_threads_than_cores_is_the_users_choice_with_a_warning() -> None:
    made = make(place(0, 2), cores(4), {"OMP_NUM_THREADS": "8"})
    assert made.omp_num_threads == 8
    assert "this rank has 2 cores" in made.warnings[0]


def test_nested_thread_counts_are_kept_as_the_user_wrote_them() -> None:
    made = make(place(), cores(4), {"OMP_NUM_THREADS": "4,2"})
    assert made.omp_num_threads == 4
    assert made.environment["OMP_NUM_THREADS"] == "4,2"


@pytest.mark.parametrize("value", ["0", "-1", "many", "2,", "1.5", "1٣"])
def test_threads_that_are_no_number_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match=f"OMP_NUM_THREADS is '{value}'"):
        make(place(), cores(4), {"OMP_NUM_THREADS": value})


def test_an_empty_thread_variable_counts_as_unset() -> None:
    assert make(place(), cores(4), {"OMP_NUM_THREADS": ""}).environment["OMP_NUM_THREADS"] == "4"


TORCHRUN_RANK = {"OMP_NUM_THREADS": "1", "ROLE_NAME": "default"}


def test_the_one_thread_that_torchrun_sets_by_itself_is_not_the_users() -> None:
    made = make(place(0, 2, "torchrun"), cores(8), TORCHRUN_RANK)
    assert made.omp_num_threads == 4
    assert any("torchrun sets by itself" in reason for reason in made.reasons)


def test_one_thread_under_our_own_launch_is_the_users() -> None:
    environ = {"OMP_NUM_THREADS": "1", "ROLE_NAME": "cpu-train-stack"}
    assert make(place(0, 2, "torchrun"), cores(8), environ).omp_num_threads == 1


@pytest.mark.parametrize(
    ("where", "environ"),
    [
        (place(0, 1, "torchrun"), TORCHRUN_RANK),  # torchrun sets nothing for a single rank a node
        (place(0, 2, "hydra"), TORCHRUN_RANK),
        (place(0, 2, "torchrun"), {**TORCHRUN_RANK, "OMP_NUM_THREADS": "2"}),
    ],
    ids=["one rank a node", "another launcher", "another number"],
)
def test_other_numbers_of_threads_are_the_users(where: DistributedEnvironment, environ: dict[str, str]) -> None:
    assert make(where, cores(8), environ).environment["OMP_NUM_THREADS"] == environ["OMP_NUM_THREADS"]


# Threads: where they run


def test_intel_openmps_variables_are_set_only_with_its_library() -> None:
    assert make(place(), cores(2), preloads=IOMP).environment["KMP_BLOCKTIME"] == "1"
    assert not {name for name in make(place(), cores(2)).environment if name.startswith("KMP_")}
    own = make(place(), cores(2, 2), {"LD_PRELOAD": "/x/libiomp5.so"}, Preloads())
    assert own.environment["KMP_AFFINITY"] == affinity(range(2))


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        ({"OMP_NUM_THREADS": "5"}, {}),
        ({"OMP_PROC_BIND": "spread"}, {}),
        ({"OMP_PLACES": "cores"}, {}),
        ({"KMP_AFFINITY": "none"}, {}),
        ({}, {"quota": Quota(3, "cpu.max")}),
    ],
    ids=["too many threads", "OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "quota"],
)
def test_compute_keeps_to_one_hardware_thread_of_each_core_where_the_cores_are_the_ranks(
    environ: dict[str, str], facts: dict[str, Any]
) -> None:
    chosen = make(place(1, 2), cores(8, 2), {}, IOMP).environment
    assert chosen["KMP_AFFINITY"] == "granularity=fine,proclist=[{4,5,6,7}],explicit"
    chosen = make(place(1, 2), cores(8, 2), environ, IOMP, **facts).environment
    assert "KMP_AFFINITY" not in chosen


def test_threads_are_not_placed_where_cores_have_one_hardware_thread_or_are_shared() -> None:
    assert "KMP_AFFINITY" not in make(place(), cores(4), preloads=IOMP).environment
    assert "KMP_AFFINITY" not in make(place(0, 5), cores(2, 2), preloads=IOMP).environment


@pytest.mark.parametrize("name", ["KMP_BLOCKTIME", "KMP_AFFINITY", "OMP_PLACES", "TORCH_CPP_LOG_LEVEL"])
def test_the_users_own_variable_is_left_alone(name: str) -> None:
    made = make(place(), cores(2), {name: "INFO"}, IOMP)
    assert name not in made.environment
    if name.startswith("KMP_"):
        assert any(f"{name}=INFO is the user's own" in reason for reason in made.reasons)


# Communication


@given(
    count=st.integers(1, 70),
    ranks=st.integers(2, 4),
    quota=st.none() | st.integers(1, 70),
    workers=st.none() | st.integers(1, 3),
    threads=st.none() | st.integers(1, 20),
)
def test_all_ranks_of_a_node_have_as_many_workers(
    count: int, ranks: int, quota: int | None, workers: int | None, threads: int | None
) -> None:
    topology = host(cores(count), quota=quota and Quota(quota, "cpu.max"))
    own = {"CCL_WORKER_COUNT": workers, "OMP_NUM_THREADS": threads}
    environ = {name: str(value) for name, value in own.items() if value}
    made = [plan(place(index, ranks), topology, environ, IOMP, "ccl") for index in range(ranks)]
    assert len({(len(one.ccl_worker_cores), one.environment.get("CCL_WORKER_OFFLOAD")) for one in made}) == 1


@pytest.mark.parametrize(
    ("count", "quota", "expected"),
    [(31, None, "0"), (33, None, "1"), (33, Quota(33, "cpu.max"), "0")],
    ids=["one share is too small", "both are large enough", "the quota does not feed the larger one"],
)
def test_ranks_with_unequal_shares_decide_alike_on_a_worker(
    count: int, quota: Quota | None, expected: str
) -> None:
    made = [make(place(index, 2), cores(count), {}, IOMP, "ccl", quota=quota) for index in range(2)]
    assert [one.environment["CCL_WORKER_OFFLOAD"] for one in made] == [expected, expected]


def test_a_rank_with_cores_to_spare_keeps_one_for_ccls_worker() -> None:
    made = make(place(1, 2), cores(32), {}, IOMP, "ccl")
    assert made.ccl_worker_cores == (31,)
    assert made.omp_num_threads == 15
    assert made.environment["CCL_WORKER_OFFLOAD"] == "1"
    # For all ranks of the node, of which oneCCL takes the part at its own place.
    assert made.environment["CCL_WORKER_AFFINITY"] == "31,31"


@pytest.mark.parametrize(
    ("where", "count", "environ"),
    [
        (place(0, 2), 30, {}),
        (place(0, 1), 64, {}),
        (place(0, 2), 32, {"CCL_WORKER_OFFLOAD": "0"}),
        (place(0, 2), 32, {"OMP_NUM_THREADS": "16"}),
    ],
    ids=["small shares", "one rank", "the user's own", "the user's threads need all"],
)
def test_other_ranks_have_no_worker(where: DistributedEnvironment, count: int, environ: dict[str, str]) -> None:
    made = make(where, cores(count), environ, IOMP, "ccl")
    assert made.ccl_worker_cores == ()
    assert made.environment.get("CCL_WORKER_OFFLOAD", "0") == "0"
    assert "CCL_WORKER_COUNT" not in made.environment


def test_no_worker_runs_under_a_quota_that_pauses_it() -> None:
    assert make(place(0, 2), cores(64), {}, IOMP, "ccl", quota=Quota(40, "cpu.max")).ccl_worker_cores == ()


def test_the_users_number_of_workers_is_kept_and_reserved() -> None:
    made = make(place(0, 2), cores(8), {"CCL_WORKER_COUNT": "2", "CCL_WORKER_AFFINITY": "auto"}, IOMP, "ccl")
    assert (made.cores, made.ccl_worker_cores) == ((0, 1), (2, 3))
    assert "CCL_WORKER_COUNT" not in made.environment
    assert made.environment["CCL_WORKER_AFFINITY"] == "2,3,2,3"


def test_the_users_workers_that_do_not_fit_are_a_warning() -> None:
    made = make(place(0, 2), cores(2), {"CCL_WORKER_COUNT": "1"}, IOMP, "ccl")
    assert made.ccl_worker_cores == ()
    assert made.environment["CCL_WORKER_OFFLOAD"] == "0"
    assert "no cores to spare for workers" in made.warnings[0]


def test_compute_keeps_off_the_cpus_that_the_user_gives_to_workers() -> None:
    made = make(place(0, 2), cores(8, threads=2), {"CCL_WORKER_AFFINITY": "0-1,4"}, IOMP, "ccl")
    assert made.cores == (2, 3, 10, 11)
    assert made.omp_num_threads == 2
    assert {name for name in made.environment if name.startswith("CCL_")} == {"CCL_WORKER_OFFLOAD"}


@pytest.mark.parametrize(
    "environ",
    [
        {"CCL_WORKER_COUNT": "0"},
        {"CCL_WORKER_COUNT": "two"},
        {"CCL_WORKER_COUNT": "1٣"},
        {"CCL_WORKER_AFFINITY": "first"},
    ],
)
def test_workers_that_cannot_be_read_are_refused(environ: dict[str, str]) -> None:
    ((name, value),) = environ.items()
    with pytest.raises(UsageError, match=f"{name} is '{value}'"):
        make(place(0, 2), cores(64), environ, IOMP, "ccl")


def test_the_way_to_the_master_is_among_the_reasons() -> None:
    route = Route("node-0", "10.0.0.1", "10.0.0.2", "eth1")
    made = make(place(0, 2), cores(2), route=route)
    assert any("talk over eth1: 10.0.0.2 is on the way to node-0" in reason for reason in made.reasons)
    own = make(place(0, 2), cores(2), {"GLOO_SOCKET_IFNAME": "ib0"}, route=route)
    assert any("GLOO_SOCKET_IFNAME=ib0 is the user's own" in reason for reason in own.reasons)


# Data, preloads, the document


def test_the_users_number_of_data_loading_processes_stays() -> None:
    name = "CPU_TRAIN_STACK_DATALOADER_WORKERS"
    made = make(place(), cores(8, threads=2), {name: "5"})
    assert (made.dataloader_workers, made.environment[name]) == (5, "5")
    for value in ("many", "²", "٣"):
        with pytest.raises(UsageError, match=f"{name} is '{value}'"):
            make(place(), cores(8), {name: value})


def test_the_preloads_follow_the_users_own() -> None:
    made = make(place(), cores(2), {"LD_PRELOAD": "/a.so"}, IOMP)
    assert made.environment["LD_PRELOAD"] == ":".join(["/a.so", *IOMP.paths])
    assert made.preload == IOMP.paths


def test_without_preloads_ld_preload_is_not_touched() -> None:
    assert "LD_PRELOAD" not in make(place(), cores(2), {"LD_PRELOAD": "/a.so"}).environment


def test_what_could_not_be_read_and_a_missing_preload_are_among_the_warnings() -> None:
    made = make(place(), cores(2), preloads=Preloads(warnings=("no tcmalloc",)), warnings=("no /sys",))
    assert made.warnings == ("no /sys", "no tcmalloc")


def test_the_document_has_the_documented_keys() -> None:
    where = place(1, 2)
    document = json.loads(json.dumps(make(where, cores(2), preloads=IOMP).document()))
    wanted = "rank world_size local_rank local_world_size node_rank launcher cores omp_num_threads"
    wanted += " ccl_worker_cores environment preload reasons warnings"
    assert set(wanted.split()) <= set(document)
    assert document["cores"] == [1]
    assert document["environment"].items() >= variables(where).items()
