"""Rank detection on recorded environments of every launcher, and the exported variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.detect import DistributedEnvironment, detect, from_variables, variables
from tests.unit.entrypoints import launcher_environments as recorded
from tests.unit.entrypoints.placement.placements import ADDRESS, EVERY_MPI, MPI, place, refused

# Each launcher


def test_without_a_launcher_the_process_is_the_only_rank() -> None:
    assert detect(recorded.SHELL) == DistributedEnvironment(0, 1, 0, 1, 0, "127.0.0.1", 29500, "single")


@EVERY_MPI
def test_mpi_ranks_are_placed_in_blocks(launcher: Callable[[int, int, int], dict[str, str]]) -> None:
    for rank in range(8):
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


def test_open_mpis_node_rank_is_not_taken_for_the_nodes_index() -> None:
    environ = {**recorded.open_mpi_4(2, 4, 2), **ADDRESS}
    assert environ["OMPI_COMM_WORLD_NODE_RANK"] == "0"
    assert detect(environ).node_rank == 1


def test_torchruns_node_rank_port_and_address_are_used_unchanged() -> None:
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


def test_plain_variables_imply_the_node_by_blocks() -> None:
    assert place(detect({**recorded.plain(5, 8, 1, 4), **ADDRESS})) == (5, 8, 1, 4, 1)


# A single rank despite variables that resemble a launcher's


@pytest.mark.parametrize("step", ["4294967291", "4294967290"], ids=["batch", "interactive"])
def test_slurms_own_shell_steps_are_not_tasks(step: str) -> None:
    environ = {**recorded.srun(0, "2", [2], "node01"), "SLURM_STEP_ID": step}
    assert detect(environ).launcher == "single"


def test_variables_of_a_kubernetes_indexed_job_are_not_a_rank() -> None:
    assert detect({**recorded.SHELL, "JOB_COMPLETION_INDEX": "3"}).world_size == 1


def test_empty_variables_count_as_unset() -> None:
    assert detect({**recorded.SHELL, "RANK": "", "WORLD_SIZE": "", "MASTER_ADDR": ""}).launcher == "single"


ALONE = {
    "a PBS script": {"PBS_TASKNUM": "1", "PBS_NODENUM": "0", "PBS_JOBID": "17.node-0"},
    "a pod for one node": {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"},
    "an elastic one": {"PET_NNODES": "1:1"},
    "accelerate launch --cpu": {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "True"},
    "a Flux batch script": {"FLUX_URI": "local:///run/flux/local", "FLUX_ENCLOSING_ID": "f21gva2j"},
    "an LSF script": {"LSB_JOBID": "1", "LSB_DJOB_NUMPROC": "4"},
    "an array's task": {"SLURM_ARRAY_TASK_ID": "3", "PBS_ARRAY_INDEX": "3", "SGE_TASK_ID": "3"},
    "a script's own": {"NODE_RANK": "1", "PET_NODE_RANK": "0", "PAGE_RANK": "on"},
    "a script's settings": {
        "LORA_RANK": "8",
        "LORA_ALPHA": "16",
        "TENSOR_RANK": "2",
        "NODE_RANK": "0",
        "NODE_SIZE": "2",
    },
}


@pytest.mark.parametrize("environ", ALONE.values(), ids=ALONE)
def test_a_script_or_a_job_of_one_process_is_a_single_rank(environ: dict[str, str]) -> None:
    assert detect({**recorded.SHELL, **environ}).launcher == "single"


# Several launchers


def test_an_inherited_rank_that_contradicts_open_mpi_is_refused() -> None:
    environ = {**recorded.open_mpi_4(5, 8, 4), **ADDRESS, "RANK": "1", "WORLD_SIZE": "2"}
    line = refused(environ)
    assert "found RANK=1 WORLD_SIZE=2" in line
    assert "Open MPI reports RANK=5 WORLD_SIZE=8" in line
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
def test_torchrun_inside_one_process_per_node_is_the_innermost_launcher(outer: dict[str, str]) -> None:
    found = detect({**outer, **recorded.torchrun(3, 4, 2)})
    assert place(found) == (3, 4, 1, 2, 1)
    assert found.launcher == "torchrun"


def test_hydra_started_by_srun_is_the_innermost_launcher() -> None:
    environ = {**recorded.srun(1, "1(x2)", [1, 1], "node[01-02]"), **recorded.intel_mpi(2, 4, 2), **ADDRESS}
    assert detect(environ).launcher == "hydra"


@pytest.mark.parametrize(
    "outer",
    [recorded.intel_mpi(1, 4, 4), recorded.open_mpi_4(1, 4, 4), recorded.srun(1, "4", [4], "node01")],
    ids=["hydra", "Open MPI", "Slurm"],
)
def test_torchrun_variables_that_no_nesting_explains_are_refused(outer: dict[str, str]) -> None:
    line = refused({**outer, **recorded.torchrun(0, 2, 2)})
    assert "torchrun reports rank 0 of 2" in line
    assert "reports rank 1 of 4" in line


def test_one_node_of_torchrun_on_each_of_two_srun_tasks_is_two_jobs_and_refused() -> None:
    environ = {**recorded.srun(1, "1(x2)", [1, 1], "node[01-02]"), **recorded.torchrun(0, 2, 2)}
    assert "1 nodes" in refused(environ)


def test_two_mpi_launchers_that_disagree_are_refused() -> None:
    assert "hydra reports" in refused({**recorded.open_mpi_4(0, 2, 2), **recorded.intel_mpi(1, 2, 2)})


def test_mvapich2_started_by_hydra_has_two_equal_sets() -> None:
    assert detect({**recorded.mvapich2(1, 4, 4), **recorded.mpich(1, 4, 4)}).launcher == "MVAPICH2"


def test_jsruns_set_equals_spectrum_mpis() -> None:
    environ = {**recorded.jsrun(3, 4, 2), **recorded.open_mpi_4(3, 4, 2), **ADDRESS}
    assert place(detect(environ)) == (3, 4, 1, 2, 1)
    assert "jsrun reports rank 1 of 4" in refused({**environ, **recorded.jsrun(1, 4, 2)})


def test_a_flux_job_inside_jsrun_is_the_innermost_launcher() -> None:
    environ = {**recorded.jsrun(0, 2, 1), **recorded.flux(3, 4, 2), **ADDRESS}
    assert detect(environ).launcher == "Flux"


# Export


def test_a_rank_runs_with_torchruns_names() -> None:
    environ = {**recorded.intel_mpi(5, 8, 4), **ADDRESS}
    wanted = (
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=node-0 MASTER_PORT=29500"
    )
    assert variables(detect(environ)) == dict(word.split("=") for word in wanted.split())


@pytest.mark.parametrize("name", ["RANK", "GROUP_RANK"])
def test_a_variable_that_contradicts_a_single_rank_is_refused(name: str) -> None:
    assert f"found {name}=8" in refused({name: "8"})


@given(nodes=st.integers(1, 5), size=st.integers(1, 5), data=st.data())
def test_exported_variables_are_detected_as_the_same_placement(nodes: int, size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, nodes * size - 1))
    kind = data.draw(st.sampled_from([*MPI.values(), recorded.torchrun]))
    environ = {**kind(rank, nodes * size, size), "MASTER_ADDR": "node-0"}
    first = detect(environ)
    bare = variables(first)
    assert detect({**environ, **bare}) == first
    assert from_variables(bare, first.launcher) == first
    assert detect(bare) == replace(first, launcher="environment")


@given(
    rank=st.integers(-3, 9), world=st.integers(-3, 9), local_rank=st.integers(-3, 9), local_size=st.integers(-3, 9)
)
def test_four_plain_numbers_are_either_a_possible_placement_or_refused(
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
