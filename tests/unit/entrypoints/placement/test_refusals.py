"""Environments that rank detection refuses: incomplete, contradictory, or of an unknown launcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.detect import detect
from tests.unit.entrypoints import launcher_environments as recorded
from tests.unit.entrypoints.placement.placements import ADDRESS, place, refused

# Incomplete variables


# test_recorded_environments.py has the launchers that are recorded.
COMPLETE = {
    "MVAPICH2": (
        recorded.mvapich2(1, 4, 4),
        "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    "PALS": (recorded.pals(1, 4, 4), "PALS_RANKID PMI_SIZE PALS_LOCAL_RANKID PALS_LOCAL_SIZE PMI_RANK"),
    "jsrun": (
        recorded.jsrun(1, 4, 4),
        "JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE",
    ),
    "environment": (recorded.plain(1, 4, 1, 4), "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"),
}
GAPS = [
    pytest.param(environ, name, id=f"{launcher} without {name}")
    for launcher, (environ, names) in COMPLETE.items()
    for name in names.split()
]


@pytest.mark.parametrize(("name", "environ"), [(name, environ) for name, (environ, _) in COMPLETE.items()])
def test_a_complete_set_names_its_launcher(name: str, environ: dict[str, str]) -> None:
    assert detect(environ).launcher == name


@pytest.mark.parametrize(("environ", "gap"), GAPS)
def test_an_incomplete_set_is_refused_and_the_error_names_the_missing_variable(
    environ: dict[str, str], gap: str
) -> None:
    line = refused({name: value for name, value in environ.items() if name != gap})
    missing = line.partition("but not ")[2].partition(" (launcher: ")[0].split()
    assert missing == [gap]


def test_a_rank_and_a_world_size_are_an_incomplete_set() -> None:
    line = refused({**recorded.SHELL, "RANK": "0", "WORLD_SIZE": "2"})
    assert "but not LOCAL_RANK LOCAL_WORLD_SIZE (launcher: environment): " in line
    assert "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1" in line


def test_the_error_of_a_kubernetes_pod_without_torchrun_names_the_missing_variables() -> None:
    assert "LOCAL_RANK LOCAL_WORLD_SIZE" in refused(recorded.pytorchjob_with_master(1, 2))


def test_torchrun_in_a_kubernetes_pod_replaces_the_pods_own_rank() -> None:
    environ = {**recorded.pytorchjob_with_master(1, 2), **recorded.torchrun(3, 4, 2, "job-master-0")}
    assert place(detect(environ)) == (3, 4, 1, 2, 1)


def test_pmi_variables_of_srun_without_local_ones_do_not_hide_the_slurm_step() -> None:
    environ = {**recorded.srun(1, "2", [2], "node01"), "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "7"}
    assert place(detect(environ)) == (1, 2, 1, 2, 0)
    assert detect(environ).launcher == "Slurm"


def test_pmi_variables_alone_are_an_incomplete_hydra_set() -> None:
    line = refused({**recorded.SHELL, "PMI_RANK": "1", "PMI_SIZE": "2"})
    assert "but not MPI_LOCALRANKID MPI_LOCALNRANKS (launcher: hydra): " in line


@pytest.mark.parametrize("extra", [{"PMI_RANK": "0"}, {"PMI_SIZE": "4", "PMI_RANK": "1"}])
def test_an_incomplete_inner_set_that_contradicts_the_step_is_refused(extra: dict[str, str]) -> None:
    assert "contradicts Slurm" in refused({**recorded.srun(1, "2", [2], "node01"), **extra})


# Launchers that do not define the placement


MARKED = {
    "prterun": {"PMIX_RANK": "0"},
    "aprun": {"ALPS_APP_PE": "0"},
    "blaunch": {"LSF_PM_TASKID": "1"},
    "pbsdsh of OpenPBS": {"PBS_TASKNUM": "80000001", "PBS_NODENUM": "1"},
    "pbsdsh of Torque": {"PBS_TASKNUM": "1", "PBS_NODENUM": "1"},
    "pbsdsh on the first node": {"PBS_TASKNUM": "00000002", "PBS_NODENUM": "0"},
    "the operator": {"PET_NNODES": "4:4", "PET_RDZV_ENDPOINT": "bert-worker-0:23456"},
    "a TrainJob's operator": {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1"},
    "accelerate launch": {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "node-0"},
    "Slurm, its step lost": {"SLURM_PROCID": "1"},
    "an unknown launcher": {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"},
    "another": {"PMI_LOCAL_RANK": "1"},
    "an old mpirun": {"MPIRUN_RANK": "1", "MPIRUN_NPROCS": "4"},
}


@pytest.mark.parametrize("marks", MARKED.values(), ids=MARKED)
def test_a_process_with_a_launchers_mark_is_never_a_single_rank(marks: dict[str, str]) -> None:
    line = refused({**recorded.SHELL, **marks})
    assert "does not set the number of ranks and their nodes" in line
    assert "to run a single rank" in line


@pytest.mark.parametrize("marks", MARKED.values(), ids=MARKED)
def test_a_complete_set_takes_precedence_over_a_mark(marks: dict[str, str]) -> None:
    own = recorded.plain(1, 2, 0, 1)
    assert place(detect({**recorded.SHELL, **ADDRESS, **marks, **own})) == (1, 2, 0, 1, 1)


def test_the_error_of_pals_with_pmix_explains_how_to_start() -> None:
    line = refused({**recorded.pals_with_pmix(1, 4), "PMIX_RANK": "1"})
    assert "but not PMI_SIZE PMI_RANK (launcher: PALS): " in line
    assert "--pmi=pmix" in line


@pytest.mark.parametrize("extra", [{"PMI_RANK": "3"}, {"PMI_RANK": "0"}])
def test_the_two_ranks_of_pals_must_be_equal(extra: dict[str, str]) -> None:
    assert "contradicts PALS, which reports 1" in refused({**recorded.pals(1, 4, 4), **extra})


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=4), data=st.data())
def test_all_ranks_of_flux_are_placed_correctly_or_one_is_refused(counts: list[int], data: st.DataObject) -> None:
    """Ranks are placed on nodes in any order, and local ranks follow the order of the ranks."""
    nodes = [node for node, count in enumerate(counts) for _ in range(count)]
    dealt = data.draw(st.permutations(nodes))
    size, used = len(dealt), len(set(dealt))
    if not size:
        return
    placed, true = [], []
    for rank, node in enumerate(dealt):
        local_rank = dealt[:rank].count(node)
        true.append((rank, size, local_rank, dealt.count(node)))
        environ = {**recorded.flux(rank, size, 1), "FLUX_TASK_LOCAL_ID": str(local_rank), **ADDRESS}
        try:
            placed.append(place(detect({**environ, "FLUX_JOB_NNODES": str(used)}))[:4])
        except UsageError:
            return
    assert placed == true


# Contradictions inside one launcher


@pytest.mark.parametrize(
    ("environ", "found", "expected"),
    [
        (recorded.plain(2, 2, 0, 1), "rank is 2", "expected 0 to 1"),
        (recorded.plain(0, 0, 0, 1), "world_size is 0", "at least 1"),
        (recorded.plain(1, 2, 2, 2), "local_rank is 2", "expected 0 to 1"),
        (recorded.plain(1, 2, 1, 4), "local_world_size is 4", "expected 1 to 2"),
        (recorded.plain(0, 2, 0, 0), "local_world_size is 0", "expected 1 to 2"),
        (recorded.plain(0, 2, 1, 2), "local_rank is 1", "expected 0"),
        (recorded.plain(0, 3, 0, 2), "rank 0 of 3", "same number on every node"),
        (recorded.plain(1, 4, 0, 2), "local rank 0 of 2", "blocks of consecutive ranks"),
        ({**recorded.open_mpi_4(5, 8, 4), "OMPI_COMM_WORLD_SIZE": "4"}, "rank is 5", "0 to 3"),
        ({**recorded.mvapich2(1, 4, 4), "MV2_COMM_WORLD_LOCAL_RANK": "4"}, "local_rank is 4", "0 to 3"),
        ({**recorded.intel_mpi(1, 4, 2), "MPI_LOCALRANKID": "0"}, "local rank 0 of 2", "-ppn"),
        ({**recorded.pals(1, 4, 2), "PALS_LOCAL_RANKID": "0"}, "local rank 0 of 2", "--ppn"),
        ({**recorded.jsrun(1, 4, 2), "JSM_NAMESPACE_LOCAL_RANK": "0"}, "local rank 0 of 2", "packed"),
        ({**recorded.flux(1, 4, 2), "FLUX_JOB_NNODES": "3"}, "on 3 nodes", "--tasks-per-node"),
        ({**recorded.flux(1, 4, 2), "FLUX_JOB_NNODES": "5"}, "on 5 nodes", "--tasks-per-node"),
        ({**recorded.flux(1, 4, 2), "FLUX_JOB_NNODES": "0"}, "on 0 nodes", "--tasks-per-node"),
        ({**recorded.flux(1, 4, 4), "FLUX_TASK_RANK": "5"}, "rank is 5", "0 to 3"),
        ({**recorded.torchrun(1, 4, 2), "GROUP_RANK": "2"}, "GROUP_RANK=2", "node rank < nodes"),
        ({**recorded.torchrun(1, 4, 2), "GROUP_WORLD_SIZE": "9"}, "GROUP_WORLD_SIZE=9", "nodes <= ranks"),
        ({**recorded.torchrun(0, 4, 2), "GROUP_RANK": "1"}, "node_rank is 1", "expected 0"),
        (
            {**recorded.torchrun(3, 4, 1), "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "2", "GROUP_WORLD_SIZE": "3"},
            "node_rank is 2",
            "expected 0 to 1",
        ),
        ({**recorded.torchrun(1, 2, 2), "WORLD_SIZE": "1"}, "rank is 1", "expected 0"),
        ({**recorded.srun(1, "4", [4], "node01"), "SLURM_PROCID": "4"}, "rank is 4", "0 to 3"),
        (
            {**recorded.srun(1, "4", [4], "n1"), "SLURM_STEP_NUM_TASKS": "3"},
            "4 tasks on 1 nodes",
            "from different steps",
        ),
        ({**recorded.srun(1, "4", [4], "node01"), "SLURM_NODEID": "1"}, "SLURM_NODEID=1", "srun"),
        ({**recorded.srun(1, "4", [4], "node01"), "SLURM_STEP_TASKS_PER_NODE": "4(y)"}, "'4(y)'", "2(x2),1"),
        ({**recorded.srun(0, "1(x2)", [1, 1], "n[1"), "MASTER_ADDR": ""}, "'n[1'", "set MASTER_ADDR"),
        ({**recorded.SHELL, "MASTER_PORT": "0"}, "master_port is 0", "1 to 65535"),
        ({**recorded.SHELL, "MASTER_PORT": "65536"}, "master_port is 65536", "1 to 65535"),
        ({**recorded.SHELL, "MASTER_ADDR": "tcp://node-0"}, "'tcp://node-0'", "host name or address"),
    ],
    ids=lambda value: value.replace("/", "_") if isinstance(value, str) else "",
)
def test_impossible_numbers_are_refused(environ: dict[str, str], found: str, expected: str) -> None:
    if environ is not None and "OMPI_COMM_WORLD_RANK" in environ:
        environ = {**environ, **ADDRESS}
    line = refused(environ)
    assert found in line
    assert expected in line


@pytest.mark.parametrize("value", ["one", "-1", "1.0", " 1", "1 ", "0x1", "¹", "٣", "1" * 12], ids=repr)
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
def test_a_variable_that_is_not_a_plain_integer_is_refused_by_name(name: str, value: str) -> None:
    line = refused({**recorded.plain(0, 1, 0, 1), name: value})
    assert f"{name} is {value!r}" in line
