"""The number of a rank's compute threads and their CPUs, and whose variable takes precedence."""

from __future__ import annotations

from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine.facts import Quota
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan.preload import Preloads
from cpu_train_stack.plan.threads import affinity
from tests.unit.entrypoints.plan.rank_plans import IOMP, cores, make, place

# The number


def test_the_users_threads_take_precedence_and_the_plan_reports_it() -> None:
    made = make(place(), cores(4), {"OMP_NUM_THREADS": "3"})
    assert made.omp_num_threads == 3
    assert made.environment["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS=3 is set by the user" in made.reasons
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
def test_an_invalid_number_of_threads_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=f"OMP_NUM_THREADS is '{value}'"):
        make(place(), cores(4), {"OMP_NUM_THREADS": value})


def test_an_empty_thread_variable_counts_as_unset() -> None:
    assert make(place(), cores(4), {"OMP_NUM_THREADS": ""}).environment["OMP_NUM_THREADS"] == "4"


TORCHRUN_RANK = {"OMP_NUM_THREADS": "1", "ROLE_NAME": "default"}


def test_torchruns_default_of_one_thread_is_replaced() -> None:
    made = make(place(0, 2, "torchrun"), cores(8), TORCHRUN_RANK)
    assert made.omp_num_threads == 4
    assert any("torchrun's default" in reason for reason in made.reasons)


def test_one_thread_under_launch_is_the_users_choice() -> None:
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
def test_other_numbers_of_threads_are_the_users_choice(
    where: DistributedEnvironment, environ: dict[str, str]
) -> None:
    assert make(where, cores(8), environ).environment["OMP_NUM_THREADS"] == environ["OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    "environ", [{}, {"OMP_NUM_THREADS": "2"}], ids=["the plan's threads", "the user's threads"]
)
def test_the_plan_warns_if_torch_would_compute_with_the_threads_of_mkl(environ: dict[str, str]) -> None:
    made = make(place(), cores(4), {**environ, "MKL_NUM_THREADS": "1"})
    assert made.warnings == (
        f"MKL_NUM_THREADS=1, expected {made.omp_num_threads} as in OMP_NUM_THREADS: torch uses MKL's "
        "number for all of its threads: unset MKL_NUM_THREADS",
    )


@pytest.mark.parametrize("value", ["", "0", "4", "many"])
def test_the_plan_does_not_warn_of_mkls_threads_if_they_have_no_effect(value: str) -> None:
    assert not make(place(), cores(4), {"MKL_NUM_THREADS": value}).warnings


# The CPUs


def test_the_plan_warns_if_gomp_cpu_affinity_places_several_ranks_on_the_same_cpus() -> None:
    (warning,) = make(place(0, 2), cores(4), {"GOMP_CPU_AFFINITY": "0-3"}).warnings
    assert warning.startswith("GOMP_CPU_AFFINITY=0-3 with 2 ranks on this node: ranks with the same value")
    assert not make(place(), cores(4), {"GOMP_CPU_AFFINITY": "0-3"}).warnings
    assert not make(place(0, 2), cores(4), {"OMP_PLACES": "cores"}).warnings


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
def test_compute_threads_use_one_hardware_thread_of_each_core_that_the_rank_has_to_itself(
    environ: dict[str, str], facts: dict[str, Any]
) -> None:
    chosen = make(place(1, 2), cores(8, 2), {}, IOMP).environment
    assert chosen["KMP_AFFINITY"] == "granularity=fine,proclist=[{4,5,6,7}],explicit"
    chosen = make(place(1, 2), cores(8, 2), environ, IOMP, **facts).environment
    assert "KMP_AFFINITY" not in chosen


def test_threads_are_not_placed_if_cores_have_one_hardware_thread_or_are_shared() -> None:
    assert "KMP_AFFINITY" not in make(place(), cores(4), preloads=IOMP).environment
    assert "KMP_AFFINITY" not in make(place(0, 5), cores(2, 2), preloads=IOMP).environment


@pytest.mark.parametrize("name", ["KMP_BLOCKTIME", "KMP_AFFINITY", "OMP_PLACES", "TORCH_CPP_LOG_LEVEL"])
def test_the_users_variable_is_kept(name: str) -> None:
    made = make(place(), cores(2), {name: "INFO"}, IOMP)
    assert name not in made.environment
    if name.startswith("KMP_"):
        assert any(f"{name}=INFO is set by the user" in reason for reason in made.reasons)
