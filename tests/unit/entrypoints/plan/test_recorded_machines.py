"""Recorded machines: the plans of 1, 2, 4 and 8 ranks of a node, and the cores of the nodes of a local cluster."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine import topology
from cpu_train_stack.machine.cpus import format_cpu_list
from cpu_train_stack.machine.facts import Topology
from cpu_train_stack.machine.numa import MemoryPolicy
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan.cores import divide
from cpu_train_stack.plan.planner import RankPlan, plan, ranks_for
from cpu_train_stack.plan.preload import Preloads
from cpu_train_stack.plan.threads import affinity
from tests.unit.entrypoints.machines.expected import EXPECTED
from tests.unit.entrypoints.machines.layout import lay_out
from tests.unit.entrypoints.machines.recorded import MACHINES

LIBRARIES = Preloads(("/opt/venv/lib/libiomp5.so",))
RANKS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@cache
def read(folder: Path, name: str) -> Topology:
    return topology.read(lay_out(MACHINES[name], folder / name))


def plans(
    host: Topology, ranks: int, backend: str = "ccl", environ: dict[str, str] | None = None
) -> list[RankPlan]:
    places = [DistributedEnvironment(rank, ranks, rank, ranks, launcher="what-if") for rank in range(ranks)]
    return [plan(place, host, environ or {}, LIBRARIES, backend) for place in places]


def short(made: RankPlan) -> str:
    text = f"{format_cpu_list(made.cores)} x{made.omp_num_threads}"
    return text + (f" w{format_cpu_list(made.ccl_worker_cores)}" if made.ccl_worker_cores else "")


@pytest.mark.parametrize("name", EXPECTED)
def test_each_rank_gets_its_part_of_the_machine(folder: Path, name: str) -> None:
    host = read(folder, name)
    places = {(core.socket, core.node) for core in host.cores}
    sizes = {sum((core.socket, core.node) == place for core in host.cores) for place in places}
    for ranks in RANKS:
        made = plans(host, ranks)
        assert " | ".join(map(short, made)) == EXPECTED[name][ranks]
        if ranks % len(places) or len(sizes) > 1 or len(host.allowed) < ranks:
            continue  # a rank has to cross sockets or NUMA nodes
        assert [len(one.nodes) for one in made] == [1] * ranks
        assert host.quota or host.warnings or not any(one.warnings for one in made)


def test_every_machine_is_in_the_table() -> None:
    assert set(MACHINES) - set(EXPECTED) == {"graviton3"}


def test_arm64_is_refused_in_one_line(folder: Path) -> None:
    host = read(folder, "graviton3")
    assert (host.machine, host.bf16) == ("aarch64", "bf16")
    with pytest.raises(UsageError, match="this CPU is aarch64, expected x86_64") as error:
        plans(host, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("ice-lake-2x32", 2),
        ("sapphire-rapids-2x56-snc4", 8),
        ("r7iz.metal-16xl", 1),
        ("xeon-max-2x56-flat", 2),
        ("granite-rapids-2x120-snc3", 6),
        ("genoa-2x96-nps4", 8),
        ("turin-2x128-nps1", 2),
        ("vm-2", 1),
        ("cpuset-without-0", 1),
        ("quota-1.5-v1", 1),
        ("quota-1.5-v2-nested", 1),
        ("quota-16-on-2x32", 1),
        ("kubernetes-static-16", 1),
        ("no-numa-folder", 2),
    ],
)
def test_auto_is_one_rank_per_numa_node_within_the_quota(folder: Path, name: str, ranks: int) -> None:
    assert ranks_for(read(folder, name)) == ranks


@pytest.mark.parametrize("name", ["quota-1.5-v1", "quota-1.5-v2-nested"])
def test_a_quota_is_found_in_any_group_and_its_file_is_named(folder: Path, name: str) -> None:
    host = read(folder, name)
    assert host.quota is not None
    assert host.quota.cpus == 1.5
    (made,) = plans(host, 1)
    assert any("CPU quota is 1.5 CPUs (/sys/fs/cgroup/" in reason for reason in made.reasons)
    assert "KMP_AFFINITY" not in made.environment


def test_missing_cpus_of_a_mask_are_ignored(folder: Path) -> None:
    assert read(folder, "vm-2").allowed == {0, 1}
    assert 3 not in read(folder, "offline").allowed


def test_a_numa_node_of_memory_only_gets_no_rank(folder: Path) -> None:
    host = read(folder, "xeon-max-2x56-flat")
    assert [node.cpus for node in host.nodes[2:]] == [(), ()]
    assert ranks_for(host) == 2


def test_memory_comes_from_the_ranks_own_node_or_from_all_of_its_nodes(folder: Path) -> None:
    host = read(folder, "ice-lake-2x32")
    assert [made.memory_policy for made in plans(host, 2)] == [
        MemoryPolicy("preferred", (0,)),
        MemoryPolicy("preferred", (1,)),
    ]
    assert plans(host, 1)[0].memory_policy == MemoryPolicy("interleave", (0, 1))
    assert plans(read(folder, "quota-16-on-2x32"), 1)[0].memory_policy == MemoryPolicy()
    assert plans(read(folder, "vm-2"), 1)[0].memory_policy == MemoryPolicy()


def test_the_warning_for_one_rank_on_two_sockets_names_auto(folder: Path) -> None:
    (made,) = plans(read(folder, "ice-lake-2x32"), 1)
    assert "launch --nproc-per-node auto" in made.warnings[0]
    assert not any(made.warnings for made in plans(read(folder, "ice-lake-2x32"), 2))


def test_equal_shares_that_cross_a_socket_are_a_warning(folder: Path) -> None:
    first, second = plans(read(folder, "asymmetric-12+4"), 2)
    assert not first.warnings
    assert "on sockets 0-1" in second.warnings[0]


def test_one_rank_per_socket_of_24_cores_gets_the_guides_setting(folder: Path) -> None:
    # Hugging Face's guide: mpirun -n 2, one process a socket, OMP_NUM_THREADS=23, CCL_WORKER_COUNT=1.
    made = plans(read(folder, "genoa-2x96-nps4"), 8)[0]
    assert (made.omp_num_threads, len(made.ccl_worker_cores)) == (23, 1)
    assert made.environment["CCL_WORKER_COUNT"] == "1"
    assert made.environment["KMP_AFFINITY"] == affinity(range(23))


def test_two_workers_per_rank_as_in_the_guide_are_kept_if_the_user_sets_them(folder: Path) -> None:
    first, second = plans(read(folder, "r7iz.metal-16xl"), 2, environ={"CCL_WORKER_COUNT": "2"})
    assert (short(first), short(second)) == ("0-13,32-45 x14 w14-15", "16-29,48-61 x14 w30-31")
    assert first.environment["CCL_WORKER_AFFINITY"] == "14,15,14,15"


def test_gloo_reserves_no_core_for_workers(folder: Path) -> None:
    for made in plans(read(folder, "r7iz.metal-16xl"), 2, "gloo"):
        assert (made.omp_num_threads, made.ccl_worker_cores) == (16, ())
        assert not any(name.startswith("CCL_") for name in made.environment)


def test_data_loading_processes_need_room_next_to_compute_threads(folder: Path) -> None:
    def workers(name: str, ranks: int = 1) -> int:
        return plans(read(folder, name), ranks)[0].dataloader_workers

    assert workers("ice-lake-2x32", 2) == 2  # on second hardware threads
    assert workers("vm-16-adjacent", 8) == 1
    assert workers("vm-2") == 0
    assert workers("quota-1.5-v1") == 0
    assert workers("quota-16-on-2x32") == 0
    assert workers("kubernetes-static-16") == 2


@pytest.mark.parametrize("name", EXPECTED)
def test_nodes_of_a_local_cluster_share_no_core_and_cross_no_socket(folder: Path, name: str) -> None:
    cores = read(folder, name).cores
    sockets = {core.socket for core in cores}
    sizes = {sum(core.socket == socket for core in cores) for socket in sockets}
    for nodes in (1, 2, 3, 4, 8):
        parts = divide(cores, nodes)
        assert all(any(core.cpus for core in part) for part in parts)
        if nodes > len(cores):
            continue
        assert sorted(core.cpus for part in parts for core in part) == sorted(core.cpus for core in cores)
        if nodes % len(sockets) == 0 and len(sizes) == 1:
            assert all(len({core.socket for core in part}) == 1 for part in parts)


@pytest.mark.parametrize(
    ("name", "nodes", "expected"),
    [
        ("ice-lake-2x32", 2, ["0-31,64-95", "32-63,96-127"]),
        ("vm-16-adjacent", 2, ["0-7", "8-15"]),
        ("alternating-2x8", 2, [",".join(map(str, range(socket, 32, 2))) for socket in (0, 1)]),
        ("cpuset-of-siblings", 2, ["2-3,10-11", "12-13"]),
        ("cpuset-of-siblings", 6, ["2", "10", "3", "11", "12", "13"]),
    ],
)
def test_a_node_of_a_local_cluster_gets_both_hardware_threads_of_its_cores(
    folder: Path, name: str, nodes: int, expected: list[str]
) -> None:
    shares = divide(read(folder, name).cores, nodes)
    assert [format_cpu_list(cpu for core in share for cpu in core.cpus) for share in shares] == expected
