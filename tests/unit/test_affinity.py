"""What a rank gets: the split of the cores, the threads, and whose variable wins."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.affinity import RankPlan, divide, plan
from entrypoints.environment import DistributedEnvironment, variables
from entrypoints.errors import UsageError
from entrypoints.preload import Preloads
from entrypoints.topology import Topology

IOMP = Preloads(("/usr/lib/libtcmalloc_minimal.so.4", "/opt/venv/lib/libiomp5.so"), ("found both",), ())


def place(local_rank: int = 0, local_world_size: int = 1, launcher: str = "hydra") -> DistributedEnvironment:
    return DistributedEnvironment(local_rank, local_world_size, local_rank, local_world_size, launcher=launcher)


def cores(count: int, threads: int = 1) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(core + count * thread for thread in range(threads)) for core in range(count))


def make(
    where: DistributedEnvironment,
    host: tuple[tuple[int, ...], ...],
    environ: dict[str, str] | None = None,
    preloads: Preloads = Preloads(),  # noqa: B008 - frozen
    launcher_cpus: frozenset[int] | None = None,
) -> RankPlan:
    return plan(where, Topology(host, launcher_cpus, "amx_bf16"), environ or {}, preloads)


@given(items=st.lists(st.integers(), max_size=200), parts=st.integers(1, 70))
def test_shares_are_contiguous_complete_and_differ_by_one_at_most(items: list[int], parts: int) -> None:
    shares = [divide(items, parts, index) for index in range(parts)]
    assert [item for share in shares for item in share] == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(
    count=st.integers(1, 64),
    threads=st.integers(1, 2),
    ranks=st.integers(1, 80),
    allowed=st.sets(st.integers(0, 127), min_size=1),
)
def test_the_ranks_of_a_node_get_disjoint_allowed_cpus_and_at_least_one(
    count: int, threads: int, ranks: int, allowed: set[int]
) -> None:
    host = tuple(filter(None, (tuple(cpu for cpu in core if cpu in allowed) for core in cores(count, threads))))
    usable = {cpu for core in host for cpu in core}
    if not usable:
        return
    plans = [make(place(index, ranks), host) for index in range(ranks)]
    for made in plans:
        assert made.cores
        assert set(made.cores) <= usable
        assert 1 <= made.omp_num_threads <= len(made.cores)
    if ranks <= len(usable):
        given_out = [cpu for made in plans for cpu in made.cores]
        assert sorted(given_out) == sorted(usable)
        assert not any(made.warnings for made in plans)
    else:
        assert all(set(made.cores) == usable and made.warnings for made in plans)


def test_hardware_threads_of_one_core_go_to_one_rank_and_count_as_one_thread() -> None:
    made = make(place(1, 2), cores(4, threads=2))
    assert made.cores == (2, 3, 6, 7)
    assert made.omp_num_threads == 2


def test_more_ranks_than_physical_cores_share_out_hardware_threads() -> None:
    host = cores(2, threads=2)
    assert [make(place(index, 4), host).cores for index in range(4)] == [(0,), (1,), (2,), (3,)]


def test_a_rank_that_the_launcher_has_bound_keeps_its_cores() -> None:
    made = make(place(1, 2), ((2,), (3,)), launcher_cpus=frozenset({0, 1, 2, 3}))
    assert made.cores == (2, 3)
    assert made.omp_num_threads == 2
    assert "hydra has bound this rank to 2 cores already" in made.reasons


def test_ranks_of_torchrun_inside_a_bound_task_share_that_tasks_cores() -> None:
    shares = [
        make(place(index, 2, launcher="torchrun"), cores(4), launcher_cpus=frozenset(range(8))) for index in (0, 1)
    ]
    assert [made.cores for made in shares] == [(0, 1), (2, 3)]


def test_an_only_rank_that_is_bound_to_a_part_of_the_node_is_a_warning() -> None:
    made = make(place(launcher="Open MPI"), ((0,),), launcher_cpus=frozenset(range(8)))
    assert made.cores == (0,)
    assert any("to 1 of 8 CPUs" in warning for warning in made.warnings)


def test_a_launcher_that_does_not_bind_leaves_the_split_to_the_plan() -> None:
    assert make(place(1, 2), cores(4), launcher_cpus=frozenset(range(4))).cores == (2, 3)


def test_more_ranks_than_cpus_is_a_warning() -> None:
    made = make(place(2, 3), cores(2))
    assert made.cores == (0, 1)
    assert "3 ranks on this node, but only 2 CPUs" in made.warnings[0]


# Variables


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


@pytest.mark.parametrize("value", ["0", "-1", "many", "2,", "1.5"])
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


def test_intel_openmps_variables_are_set_only_with_its_library() -> None:
    assert make(place(), cores(2), preloads=IOMP).environment["KMP_BLOCKTIME"] == "1"
    assert "KMP_BLOCKTIME" not in make(place(), cores(2)).environment


def test_threads_are_never_bound_one_by_one() -> None:
    assert "KMP_AFFINITY" not in make(place(), cores(2), preloads=IOMP).environment


@pytest.mark.parametrize("name", ["KMP_BLOCKTIME", "KMP_AFFINITY", "TORCH_CPP_LOG_LEVEL"])
def test_the_users_own_variable_is_left_alone(name: str) -> None:
    assert name not in make(place(), cores(2), {name: "INFO"}, IOMP).environment


def test_the_preloads_follow_the_users_own() -> None:
    made = make(place(), cores(2), {"LD_PRELOAD": "/a.so"}, IOMP)
    assert made.environment["LD_PRELOAD"] == ":".join(["/a.so", *IOMP.paths])
    assert made.preload == IOMP.paths


def test_without_preloads_ld_preload_is_not_touched() -> None:
    assert "LD_PRELOAD" not in make(place(), cores(2), {"LD_PRELOAD": "/a.so"}).environment


def test_a_missing_preload_is_among_the_warnings() -> None:
    assert make(place(), cores(2), preloads=Preloads(warnings=("no tcmalloc",))).warnings == ("no tcmalloc",)


def test_the_document_has_the_documented_keys() -> None:
    where = place(1, 2)
    document = json.loads(json.dumps(make(where, cores(2), preloads=IOMP).document()))
    wanted = "rank world_size local_rank local_world_size node_rank launcher cores omp_num_threads"
    wanted += " ccl_worker_cores environment preload reasons warnings"
    assert set(wanted.split()) <= set(document)
    assert document["cores"] == [1]
    assert document["environment"].items() >= variables(where).items()
