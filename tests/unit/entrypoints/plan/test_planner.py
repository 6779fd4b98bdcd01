"""What a rank gets: its share of the cores, memory, data loading, preloads, and the document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine.facts import Core, NumaNode, Quota
from cpu_train_stack.machine.numa import MemoryPolicy
from cpu_train_stack.placement.detect import variables
from cpu_train_stack.plan.preload import Preloads
from cpu_train_stack.plan.threads import affinity
from tests.unit.entrypoints.plan.rank_plans import IOMP, cores, make, place

# Cores


def test_hardware_threads_of_one_core_go_to_one_rank_and_count_as_one_thread() -> None:
    made = make(place(1, 2), cores(4, threads=2))
    assert made.cores == (2, 3, 6, 7)
    assert made.omp_num_threads == 2


def test_more_ranks_than_physical_cores_divide_hardware_threads() -> None:
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
    ("launcher", "facts", "warned"),
    [
        ("Slurm", {"group_cpus": frozenset(range(8))}, True),
        ("Slurm", {"group_cpus": frozenset(range(4))}, False),
        ("Slurm", {"group_cpus": frozenset(range(8)), "launcher_cpus": frozenset(range(4))}, False),
        ("torchrun", {"group_cpus": frozenset(range(8))}, False),
    ],
    ids=["hidden", "not bound", "visible", "binds nothing"],
)
def test_a_hidden_launcher_that_may_have_bound_the_rank_is_a_warning(
    launcher: str, facts: dict[str, Any], warned: bool
) -> None:
    made = make(place(1, 2, launcher), cores(4), **facts)
    assert made.cores == (2, 3)
    assert any("no process of Slurm is visible" in warning for warning in made.warnings) is warned


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
def test_ranks_that_are_bound_together_divide_their_common_cores(launcher: str, facts: dict[str, Any]) -> None:
    parts = [make(place(index, 2, launcher), cores(4), **facts).cores for index in (0, 1)]
    assert parts == [(0, 1), (2, 3)]


def test_an_only_rank_that_is_bound_to_a_part_of_the_node_is_a_warning() -> None:
    made = make(place(launcher="Open MPI"), cores(1), launcher_cpus=frozenset(range(8)))
    assert made.cores == (0,)
    assert any("to 1 of 8 CPUs" in warning for warning in made.warnings)


def test_ranks_that_are_bound_to_less_than_half_of_the_node_are_a_warning() -> None:
    made = make(place(1, 2, "Open MPI"), cores(1), launcher_cpus=frozenset(range(8)))
    assert made.cores == (0,)
    assert [warning.partition(":")[0] for warning in made.warnings] == [
        "Open MPI has bound each of the 2 ranks of this node to 1 of 8 CPUs"
    ]


@pytest.mark.parametrize(
    ("launcher", "facts"),
    [
        ("Open MPI", {"launcher_cpus": frozenset(range(16))}),
        ("torchrun", {"agent_cpus": frozenset(range(16))}),
    ],
)
def test_ranks_that_are_bound_to_the_same_socket_share_its_cores(launcher: str, facts: dict[str, Any]) -> None:
    made = make(place(2, 4, launcher), cores(8), **facts)
    assert made.cores == tuple(range(8))
    assert made.omp_num_threads == 4
    assert any("at least 2 ranks share these CPUs" in warning for warning in made.warnings)
    assert "OMP_NUM_THREADS=4: at least 2 ranks share these cores" in made.reasons


def test_ranks_that_share_the_cores_of_a_numa_node_prefer_its_memory() -> None:
    made = make(place(2, 4, "Open MPI"), on_two_nodes()[2:], nodes=TWO_NODES, launcher_cpus=frozenset(range(4)))
    assert made.omp_num_threads == 1
    assert made.memory_policy == MemoryPolicy("preferred", (1,))
    spread = make(place(2, 6, "Open MPI"), on_two_nodes(), nodes=TWO_NODES, launcher_cpus=frozenset(range(8)))
    assert spread.memory_policy == MemoryPolicy()


def test_the_parts_of_a_node_that_others_chose_are_no_warning() -> None:
    """Slurm's -c, and shells that are bound to a socket each and start half of the ranks."""
    made = make(place(1, 4, "Slurm"), cores(2), launcher_cpus=frozenset(range(64)))
    assert (made.omp_num_threads, made.warnings) == (2, ())
    made = make(place(0, 8, "environment"), cores(4), parent_cpus=frozenset(range(16)))
    assert (made.omp_num_threads, made.warnings) == (4, ())


def test_more_bound_ranks_than_cpus_have_one_thread_each() -> None:
    made = make(place(3, 4, "hydra"), cores(1), launcher_cpus=frozenset(range(2)))
    assert made.omp_num_threads == 1
    assert [warning.rpartition(": ")[2] for warning in made.warnings] == ["start fewer ranks"]


@pytest.mark.parametrize(("ranks", "bound", "cpus"), [(3, 11, 32), (4, 2, 5), (2, 2, 3), (4, 4, 31)])
def test_ranks_that_are_bound_to_parts_of_unequal_size_do_not_share_cores(
    ranks: int, bound: int, cpus: int
) -> None:
    made = make(place(0, ranks, "Open MPI"), cores(bound), launcher_cpus=frozenset(range(cpus)))
    assert (made.omp_num_threads, made.warnings) == (bound, ())


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


def test_a_quota_of_all_cores_has_no_effect() -> None:
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


def test_a_refused_memory_policy_is_reported_and_not_applied() -> None:
    made = make(place(0, 2), on_two_nodes(), nodes=TWO_NODES, memory_policy="refused")
    assert made.memory_policy == MemoryPolicy()
    assert any("CAP_SYS_NICE" in reason for reason in made.reasons)


def test_memory_policy_skips_nodes_without_memory_or_permission() -> None:
    empty = (NumaNode(0, (0, 1), 0), NumaNode(1, (2, 3), 1 << 30), NumaNode(2, (), 1 << 30))
    assert make(place(0, 2), on_two_nodes(), nodes=empty).memory_policy == MemoryPolicy()
    assert make(place(1, 2), on_two_nodes(), nodes=empty).memory_policy == MemoryPolicy("preferred", (1,))
    forbidden = (NumaNode(0, (0, 1), 1 << 30, allowed=False), NumaNode(1, (2, 3), 1 << 30))
    assert make(place(0, 1), on_two_nodes(), nodes=forbidden).memory_policy == MemoryPolicy("preferred", (1,))


# Data, preloads, the document


def test_the_users_number_of_data_loading_processes_stays() -> None:
    name = "CPU_TRAIN_STACK_DATALOADER_WORKERS"
    made = make(place(), cores(8, threads=2), {name: "5"})
    assert (made.dataloader_workers, made.environment[name]) == (5, "5")
    for value in ("many", "²", "٣"):
        with pytest.raises(UsageError, match=f"{name} is '{value}'"):
            make(place(), cores(8), {name: value})


def test_the_preloads_follow_the_users_preloads() -> None:
    made = make(place(), cores(2), {"LD_PRELOAD": "/a.so"}, IOMP)
    assert made.environment["LD_PRELOAD"] == ":".join(["/a.so", *IOMP.paths])
    assert made.preload == IOMP.paths


def test_without_preloads_ld_preload_is_not_touched() -> None:
    assert "LD_PRELOAD" not in make(place(), cores(2), {"LD_PRELOAD": "/a.so"}).environment


def test_unreadable_facts_and_a_missing_preload_are_among_the_warnings() -> None:
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


def test_the_old_variable_of_the_models_cache_is_passed_on() -> None:
    made = make(place(0, 1), cores(2), {"TRANSFORMERS_CACHE": "/pvc/cache"}, IOMP, "ccl")
    assert made.environment["HF_HUB_CACHE"] == "/pvc/cache"
    assert any("set HF_HOME instead" in text for text in made.warnings)
    kept = make(place(0, 1), cores(2), {"TRANSFORMERS_CACHE": "/a", "HF_HOME": "/b"}, IOMP, "ccl")
    assert "HF_HUB_CACHE" not in kept.environment


def test_more_threads_than_cores_are_a_warning() -> None:
    made = make(place(0, 1), cores(2), {"OMP_NUM_THREADS": "24"}, IOMP, "ccl")
    assert any(text.startswith("OMP_NUM_THREADS=24, but this rank has 2 cores") for text in made.warnings)
