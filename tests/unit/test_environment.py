"""Rank detection on recorded environments of every launcher, and on what can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints import environment
from entrypoints.environment import DistributedEnvironment, detect, export, variables
from entrypoints.errors import UsageError
from entrypoints.slurm import expand_nodelist, tasks_per_node
from tests.unit import launcher_environments as recorded

ADDRESS = {"MASTER_ADDR": "node-0"}
MPI: dict[str, Callable[[int, int, int], dict[str, str]]] = {
    "Open MPI 4": recorded.open_mpi_4,
    "Open MPI 5": recorded.open_mpi_5,
    "MVAPICH2": recorded.mvapich2,
    "Intel MPI": recorded.intel_mpi,
    "MPICH": recorded.mpich,
    "PALS": recorded.pals,
    "Flux": recorded.flux,
    "jsrun": recorded.jsrun,
}
EVERY_MPI = pytest.mark.parametrize("launcher", MPI.values(), ids=MPI)


def refused(environ: dict[str, str]) -> str:
    """The one line with which detection refuses `environ`."""
    with pytest.raises(UsageError) as error:
        detect(environ)
    line = str(error.value)
    assert "\n" not in line
    return line


def place(found: DistributedEnvironment) -> tuple[int, int, int, int, int]:
    return found.rank, found.world_size, found.local_rank, found.local_world_size, found.node_rank


# Each launcher


def test_without_a_launcher_the_process_is_the_only_rank() -> None:
    assert detect(recorded.SHELL) == DistributedEnvironment(0, 1, 0, 1, 0, "127.0.0.1", 29500, "single")


@EVERY_MPI
@pytest.mark.parametrize("rank", range(8))
def test_an_mpi_rank_is_placed_in_blocks(launcher: Callable[[int, int, int], dict[str, str]], rank: int) -> None:
    found = detect({**launcher(rank, 8, 4), **ADDRESS})
    assert place(found) == (rank, 8, rank % 4, 4, rank // 4)
    assert (found.master_addr, found.master_port) == ("node-0", 29500)


@EVERY_MPI
def test_an_mpi_job_on_one_node_needs_no_master_addr(launcher: Callable[[int, int, int], dict[str, str]]) -> None:
    found = detect(launcher(3, 4, 4))
    assert (found.master_addr, found.master_port) == ("127.0.0.1", 29500)


@EVERY_MPI
def test_an_mpi_job_on_two_nodes_without_master_addr_is_refused(
    launcher: Callable[[int, int, int], dict[str, str]],
) -> None:
    line = refused(launcher(0, 4, 2))
    assert "MASTER_ADDR is not set" in line
    assert "2 nodes" in line


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (recorded.torchrun(1, 4, 2), "torchrun"),
        (recorded.open_mpi_4(1, 4, 4), "Open MPI"),
        (recorded.mvapich2(1, 4, 4), "MVAPICH2"),
        (recorded.intel_mpi(1, 4, 4), "hydra"),
        (recorded.pals(1, 4, 4), "PALS"),
        (recorded.flux(1, 4, 4), "Flux"),
        (recorded.jsrun(1, 4, 4), "jsrun"),
        (recorded.srun(1, "4", [4], "node01"), "Slurm"),
        (recorded.plain(1, 4, 1, 4), "environment"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_launcher_is_named(environ: dict[str, str], name: str) -> None:
    assert detect(environ).launcher == name


def test_open_mpis_node_rank_is_not_taken_for_the_nodes_index() -> None:
    environ = {**recorded.open_mpi_4(2, 4, 2), **ADDRESS}
    assert environ["OMPI_COMM_WORLD_NODE_RANK"] == "0"
    assert detect(environ).node_rank == 1


def test_torchruns_node_rank_port_and_address_are_taken_as_they_are() -> None:
    environ = {**recorded.torchrun(3, 4, 2), "GROUP_RANK": "0", "MASTER_PORT": "1234"}
    found = detect({**environ, "LOCAL_RANK": "1"})
    assert (found.node_rank, found.master_addr, found.master_port) == (0, "node-0", 1234)


def test_torchrun_may_put_different_numbers_of_ranks_on_its_nodes() -> None:
    environ = {**recorded.torchrun(2, 3, 1), "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
    assert place(detect(environ)) == (2, 3, 0, 1, 1)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, (0, 5, 0, 2, 0)), (1, (1, 5, 1, 2, 0)), (3, (3, 5, 1, 2, 1)), (4, (4, 5, 0, 1, 2))],
)
def test_a_slurm_step_may_put_different_numbers_of_tasks_on_its_nodes(
    rank: int, expected: tuple[int, int, int, int, int]
) -> None:
    found = detect(recorded.srun(rank, "2(x2),1", [2, 2, 1], "node[01-02,07]"))
    assert place(found) == expected
    assert found.master_addr == "node01"


def test_a_slurm_step_in_cyclic_distribution_keeps_slurms_own_numbers() -> None:
    environ = {**recorded.srun(1, "2(x2)", [2, 2], "node[01-02]"), "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    assert place(detect(environ)) == (1, 4, 0, 2, 1)


def test_the_users_master_addr_wins_over_slurms_first_node() -> None:
    environ = recorded.srun(0, "1(x2)", [1, 1], "node[01-02]")
    assert detect({**environ, "MASTER_ADDR": "ib-node01"}).master_addr == "ib-node01"


def test_plain_variables_give_the_node_by_blocks() -> None:
    assert place(detect({**recorded.plain(5, 8, 1, 4), **ADDRESS})) == (5, 8, 1, 4, 1)


# Not a launcher: what looks like one


def test_an_sbatch_script_is_one_rank_and_the_plan_warns_that_tasks_are_idle() -> None:
    environ = recorded.sbatch(4, 2)
    found = detect(environ)
    assert found.launcher == "single"
    assert any("srun" in warning for warning in environment.warnings(found, environ))


@pytest.mark.parametrize("step", ["4294967291", "4294967290"], ids=["batch", "interactive"])
def test_slurms_own_shell_steps_are_not_tasks(step: str) -> None:
    environ = {**recorded.srun(0, "2", [2], "node01"), "SLURM_STEP_ID": step}
    assert detect(environ).launcher == "single"


def test_kubernetes_indexed_job_variables_make_no_rank() -> None:
    assert detect({**recorded.SHELL, "JOB_COMPLETION_INDEX": "3"}).world_size == 1


def test_empty_variables_count_as_unset() -> None:
    assert detect({**recorded.SHELL, "RANK": "", "WORLD_SIZE": "", "MASTER_ADDR": ""}).launcher == "single"


# Gaps: one launcher's set is incomplete

COMPLETE = {
    "torchrun": (
        recorded.torchrun(1, 4, 2),
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE",
    ),
    "torchrun's address": (recorded.torchrun(1, 4, 2), "MASTER_ADDR MASTER_PORT"),
    "Open MPI": (
        recorded.open_mpi_5(1, 4, 4),
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MVAPICH2": (
        recorded.mvapich2(1, 4, 4),
        "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    "hydra": (recorded.intel_mpi(1, 4, 4), "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS"),
    "PALS": (recorded.pals(1, 4, 4), "PALS_RANKID PMI_SIZE PALS_LOCAL_RANKID PALS_LOCAL_SIZE PMI_RANK"),
    "Flux": (recorded.flux(1, 4, 4), "FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID FLUX_JOB_NNODES"),
    "jsrun": (
        recorded.jsrun(1, 4, 4),
        "JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE",
    ),
    "Slurm": (
        recorded.srun(1, "4", [4], "node01"),
        "SLURM_PROCID SLURM_LOCALID SLURM_NODEID "
        "SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_STEP_NODELIST",
    ),
    "environment": (recorded.plain(1, 4, 1, 4), "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"),
}
GAPS = [
    pytest.param(environ, name, id=f"{launcher} without {name}")
    for launcher, (environ, names) in COMPLETE.items()
    for name in names.split()
]


@pytest.mark.parametrize(("environ", "gap"), GAPS)
def test_an_incomplete_set_is_refused_and_the_missing_variable_named(environ: dict[str, str], gap: str) -> None:
    line = refused({name: value for name, value in environ.items() if name != gap})
    missing = line.partition("but ")[2].partition(" of ")[0].split()
    assert missing == [gap]


def test_only_a_rank_and_a_world_size_is_no_complete_set() -> None:
    line = refused({**recorded.SHELL, "RANK": "0", "WORLD_SIZE": "2"})
    assert "LOCAL_RANK LOCAL_WORLD_SIZE of environment's set is missing" in line
    assert "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1" in line


def test_a_kubernetes_pod_that_is_not_started_through_torchrun_is_told_what_is_missing() -> None:
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
    assert "MPI_LOCALRANKID MPI_LOCALNRANKS of hydra's set is missing" in line


@pytest.mark.parametrize("extra", [{"PMI_RANK": "0"}, {"PMI_SIZE": "4", "PMI_RANK": "1"}])
def test_an_incomplete_inner_set_that_contradicts_the_step_is_refused(extra: dict[str, str]) -> None:
    assert "contradicts Slurm" in refused({**recorded.srun(1, "2", [2], "node01"), **extra})


# Marks of launchers that tell no place

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
    "a launcher that nobody knows": {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"},
    "another": {"PMI_LOCAL_RANK": "1"},
}


@pytest.mark.parametrize("marks", MARKED.values(), ids=MARKED)
def test_a_process_with_a_launchers_mark_is_never_taken_for_a_single_rank(marks: dict[str, str]) -> None:
    line = refused({**recorded.SHELL, **marks})
    assert "does not say how many ranks there are and where" in line
    assert "to run a single rank" in line


@pytest.mark.parametrize("marks", MARKED.values(), ids=MARKED)
def test_a_complete_set_beside_a_mark_is_the_ranks_place(marks: dict[str, str]) -> None:
    own = recorded.plain(1, 2, 0, 1)
    assert place(detect({**recorded.SHELL, **ADDRESS, **marks, **own})) == (1, 2, 0, 1, 1)


ALONE = {
    "a PBS script": {"PBS_TASKNUM": "1", "PBS_NODENUM": "0", "PBS_JOBID": "17.node-0"},
    "a pod for one node": {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"},
    "an elastic one": {"PET_NNODES": "1:1"},
    "accelerate launch --cpu": {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "True"},
    "a Flux batch script": {"FLUX_URI": "local:///run/flux/local", "FLUX_ENCLOSING_ID": "f21gva2j"},
    "an LSF script": {"LSB_JOBID": "1", "LSB_DJOB_NUMPROC": "4"},
    "an array's task": {"SLURM_ARRAY_TASK_ID": "3", "PBS_ARRAY_INDEX": "3", "SGE_TASK_ID": "3"},
    "a script's own": {"NODE_RANK": "1", "PET_NODE_RANK": "0", "PAGE_RANK": "on"},
}


@pytest.mark.parametrize("environ", ALONE.values(), ids=ALONE)
def test_a_script_or_a_job_of_one_process_is_a_single_rank(environ: dict[str, str]) -> None:
    assert detect({**recorded.SHELL, **environ}).launcher == "single"


def test_pals_with_pmix_is_told_how_to_start() -> None:
    line = refused({**recorded.pals_with_pmix(1, 4), "PMIX_RANK": "1"})
    assert "PMI_SIZE PMI_RANK of PALS's set is missing" in line
    assert "--pmi=pmix" in line


@pytest.mark.parametrize("extra", [{"PMI_RANK": "3"}, {"PMI_RANK": "0"}])
def test_the_two_ranks_of_pals_have_to_be_the_same(extra: dict[str, str]) -> None:
    assert "contradicts PALS, which says 1" in refused({**recorded.pals(1, 4, 4), **extra})


def test_jsruns_set_beside_spectrum_mpis_is_the_same_place() -> None:
    environ = {**recorded.jsrun(3, 4, 2), **recorded.open_mpi_4(3, 4, 2), **ADDRESS}
    assert place(detect(environ)) == (3, 4, 1, 2, 1)
    assert "jsrun says rank 1 of 4" in refused({**environ, **recorded.jsrun(1, 4, 2)})


def test_a_flux_job_in_an_instance_that_jsrun_started_is_the_innermost() -> None:
    environ = {**recorded.jsrun(0, 2, 1), **recorded.flux(3, 4, 2), **ADDRESS}
    assert detect(environ).launcher == "Flux"


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=4), data=st.data())
def test_fluxs_ranks_are_all_placed_truly_or_one_refuses(counts: list[int], data: st.DataObject) -> None:
    """Whatever the task map: ranks are dealt to nodes at will, local ones in the order of their ranks."""
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
            "of different steps",
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
def test_numbers_that_cannot_be_true_are_refused(environ: dict[str, str], found: str, expected: str) -> None:
    if environ is not None and "OMPI_COMM_WORLD_RANK" in environ:
        environ = {**environ, **ADDRESS}
    line = refused(environ)
    assert found in line
    assert expected in line


@pytest.mark.parametrize("value", ["one", "-1", "1.0", " 1", "1 ", "0x1", "¹", "٣", "1" * 12], ids=repr)
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
def test_what_is_not_a_plain_integer_is_refused_by_name(name: str, value: str) -> None:
    line = refused({**recorded.plain(0, 1, 0, 1), name: value})
    assert f"{name} is {value!r}" in line


# Several launchers


def test_an_inherited_rank_beside_open_mpi_is_refused_not_mixed() -> None:
    environ = {**recorded.open_mpi_4(5, 8, 4), **ADDRESS, "RANK": "1", "WORLD_SIZE": "2"}
    line = refused(environ)
    assert "found RANK=1 WORLD_SIZE=2" in line
    assert "Open MPI says RANK=5 WORLD_SIZE=8" in line
    assert "unset RANK WORLD_SIZE" in line


@EVERY_MPI
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_a_single_inherited_variable_that_differs_is_refused(
    launcher: Callable[[int, int, int], dict[str, str]], name: str
) -> None:
    assert f"found {name}=7" in refused({**launcher(1, 4, 4), name: "7"})


@EVERY_MPI
def test_an_inherited_set_that_agrees_is_accepted(launcher: Callable[[int, int, int], dict[str, str]]) -> None:
    environ = {**launcher(1, 4, 4), **recorded.plain(1, 4, 1, 4)}
    assert detect(environ) == detect(launcher(1, 4, 4))


OUTER_ONE_A_NODE = {
    "hydra -ppn 1": recorded.intel_mpi(1, 2, 1),
    "Open MPI, one a node": recorded.open_mpi_5(1, 2, 1),
    "srun, one a node": recorded.srun(1, "1(x2)", [1, 1], "node[01-02]"),
    "srun --pty bash": recorded.srun(0, "1", [1], "node01"),
}


@pytest.mark.parametrize("outer", OUTER_ONE_A_NODE.values(), ids=OUTER_ONE_A_NODE)
def test_torchrun_inside_one_process_a_node_is_the_innermost(outer: dict[str, str]) -> None:
    found = detect({**outer, **recorded.torchrun(3, 4, 2)})
    assert place(found) == (3, 4, 1, 2, 1)
    assert found.launcher == "torchrun"


def test_hydra_started_through_srun_is_the_innermost() -> None:
    environ = {**recorded.srun(1, "1(x2)", [1, 1], "node[01-02]"), **recorded.intel_mpi(2, 4, 2), **ADDRESS}
    assert detect(environ).launcher == "hydra"


@pytest.mark.parametrize(
    "outer",
    [recorded.intel_mpi(1, 4, 4), recorded.open_mpi_4(1, 4, 4), recorded.srun(1, "4", [4], "node01")],
    ids=["hydra", "Open MPI", "Slurm"],
)
def test_torchrun_variables_that_no_nesting_explains_are_refused(outer: dict[str, str]) -> None:
    line = refused({**outer, **recorded.torchrun(0, 2, 2)})
    assert "torchrun says rank 0 of 2" in line
    assert "says rank 1 of 4" in line


def test_one_node_of_torchrun_on_each_of_two_srun_tasks_is_two_jobs_and_refused() -> None:
    environ = {**recorded.srun(1, "1(x2)", [1, 1], "node[01-02]"), **recorded.torchrun(0, 2, 2)}
    assert "1 nodes" in refused(environ)


def test_two_mpi_launchers_that_disagree_are_refused() -> None:
    assert "hydra says" in refused({**recorded.open_mpi_4(0, 2, 2), **recorded.intel_mpi(1, 2, 2)})


def test_mvapich2_started_by_hydra_has_two_sets_that_agree() -> None:
    assert detect({**recorded.mvapich2(1, 4, 4), **recorded.mpich(1, 4, 4)}).launcher == "MVAPICH2"


# Export


def test_export_writes_torchruns_names() -> None:
    environ = {**recorded.intel_mpi(5, 8, 4), **ADDRESS}
    export(detect(environ), environ)
    wanted = (
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=node-0 MASTER_PORT=29500"
    )
    assert {name: environ[name] for name in variables(detect(environ))} == dict(
        word.split("=") for word in wanted.split()
    )


@pytest.mark.parametrize("name", ["RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_export_refuses_to_change_a_variable_and_writes_nothing(name: str) -> None:
    environ = {name: "8"}
    with pytest.raises(UsageError, match=f"found {name}=8"):
        export(DistributedEnvironment(), environ)
    assert environ == {name: "8"}


@given(nodes=st.integers(1, 5), size=st.integers(1, 5), data=st.data())
def test_what_was_exported_is_detected_again_as_the_same_place(nodes: int, size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, nodes * size - 1))
    kind = data.draw(st.sampled_from([*MPI.values(), recorded.torchrun]))
    environ = {**kind(rank, nodes * size, size), "MASTER_ADDR": "node-0"}
    first = detect(environ)
    export(first, environ)
    assert detect(environ) == first
    bare = variables(first)
    assert detect(bare) == replace(first, launcher="environment")


@given(
    rank=st.integers(-3, 9), world=st.integers(-3, 9), local_rank=st.integers(-3, 9), local_size=st.integers(-3, 9)
)
def test_four_plain_numbers_are_either_a_true_placement_or_refused(
    rank: int, world: int, local_rank: int, local_size: int
) -> None:
    environ = {**recorded.plain(rank, world, local_rank, local_size), **ADDRESS}
    true = (
        0 <= local_rank < local_size <= world
        and 0 <= rank < world
        and world % local_size == 0
        and rank % local_size == local_rank
    )
    try:
        found = detect(environ)
    except UsageError:
        assert not true
    else:
        assert true
        assert place(found) == (rank, world, local_rank, local_size, rank // local_size)


# Slurm's short forms


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x2),1", [2, 2, 1]), ("1,3(x3)", [1, 3, 3, 3]), ("2(x1)", [2])]
)
def test_tasks_per_node_expand(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node01", ["node01"]),
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("a,b[1,3],c-d", ["a", "b1", "b3", "c-d"]),
        ("r[1-2]n[1-2].cluster", ["r1n1.cluster", "r1n2.cluster", "r2n1.cluster", "r2n2.cluster"]),
    ],
)
def test_node_lists_expand(text: str, hosts: list[str]) -> None:
    assert expand_nodelist(text) == hosts


@pytest.mark.parametrize("text", ["٣", "2(x٣)", "²", ""])
def test_other_digits_are_no_number_of_tasks(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE"):
        tasks_per_node(text)


@pytest.mark.parametrize("step", ["²", "٣"])
def test_a_step_in_other_digits_is_no_shell_step(step: str) -> None:
    assert detect({**recorded.srun(1, "2", [2], "node01"), "SLURM_STEP_ID": step}).launcher == "Slurm"


@pytest.mark.parametrize("text", ["node[٣]", "node[1-", "node[a-b]", "", ",", "node[1-2"])
def test_broken_node_lists_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST"):
        expand_nodelist(text)
