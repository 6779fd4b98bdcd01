"""The cores that a rank keeps for oneCCL's workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine.facts import Quota
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan.planner import plan
from tests.unit.entrypoints.plan.rank_plans import IOMP, cores, host, make, place


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
def test_ranks_with_unequal_shares_make_the_same_decision_on_a_worker(
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
    made = make(place(1, 2), cores(2), {"CCL_WORKER_COUNT": "2"}, IOMP, "ccl")
    assert made.ccl_worker_cores == ()
    assert made.environment["CCL_WORKER_OFFLOAD"] == "0"
    assert "no cores to spare for workers: unset CCL_WORKER_COUNT, lower" in made.warnings[0]
    # A CPU for each worker of each rank, without which oneCCL may refuse to start.
    assert made.environment["CCL_WORKER_AFFINITY"] == "1,1,1,1"


def test_a_worker_that_the_user_asks_for_gets_a_core_of_small_shares_too() -> None:
    made = make(place(0, 2), cores(8), {"CCL_WORKER_OFFLOAD": "1"}, IOMP, "ccl")
    assert (made.cores, made.ccl_worker_cores) == ((0, 1, 2), (3,))
    assert made.environment["CCL_WORKER_AFFINITY"] == "3,3"
    assert made.warnings == ()


def test_a_worker_that_the_user_asks_for_and_that_does_not_fit_is_a_warning() -> None:
    made = make(place(0, 2), cores(64), {"CCL_WORKER_OFFLOAD": "1", "OMP_NUM_THREADS": "32"}, IOMP, "ccl")
    assert (made.ccl_worker_cores, made.environment["CCL_WORKER_OFFLOAD"]) == ((), "1")
    assert "CCL_WORKER_OFFLOAD=1: no core is free of compute threads for 1 worker" in made.reasons
    assert made.warnings[0].startswith("CCL_WORKER_OFFLOAD=1, but the rank has no cores to spare for workers")


@pytest.mark.parametrize("count", [8, 64], ids=["small shares", "large shares"])
def test_an_empty_variable_is_as_one_that_is_not_set(count: int) -> None:
    names = ("CCL_WORKER_OFFLOAD", "CCL_WORKER_COUNT", "CCL_WORKER_AFFINITY")
    empty = make(place(0, 2), cores(count), dict.fromkeys(names, ""), IOMP, "ccl")
    assert empty == make(place(0, 2), cores(count), {}, IOMP, "ccl")


def test_compute_threads_do_not_use_the_cpus_that_the_user_gives_to_workers() -> None:
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
        {"CCL_WORKER_COUNT": "2.5", "CCL_WORKER_OFFLOAD": "0"},
        {"CCL_WORKER_AFFINITY": "first"},
    ],
)
def test_invalid_worker_variables_are_refused(environ: dict[str, str]) -> None:
    name, value = next(iter(environ.items()))
    with pytest.raises(UsageError, match=f"{name} is '{value}'"):
        make(place(0, 2), cores(64), environ, IOMP, "ccl")


def test_workers_on_cpus_that_the_machine_does_not_have_are_a_warning() -> None:
    """The value of a guide for 32 cores."""
    listed = "0,1,2,3,32,33,34,35"
    made = make(place(0, 2), cores(8), {"CCL_WORKER_AFFINITY": listed}, IOMP, "ccl")
    assert any(text.startswith("CCL_WORKER_AFFINITY has 32-35, which this machine") for text in made.warnings)
