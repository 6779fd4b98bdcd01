"""Rank detection on recordings of real launchers: environments/ and its README."""

from __future__ import annotations

import contextlib
from itertools import combinations

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement import detect as environment
from cpu_train_stack.placement.detect import detect
from cpu_train_stack.placement.launchers import LAUNCHERS
from tests.unit.entrypoints.launcher_environments import RECORDINGS, recording

# Launcher, rank, world_size, local_rank, local_world_size, node_rank, master_addr.
PLACES = {
    "accelerate-mpirun-1.15": ("hydra", 1, 2, 1, 2, 0, "127.0.0.1"),
    "flux-0.88": ("Flux", 1, 2, 1, 2, 0, "127.0.0.1"),
    "intel-mpi-2021.18": ("hydra", 1, 4, 1, 4, 0, "127.0.0.1"),
    "launch-2.13": ("torchrun", 1, 2, 1, 2, 0, "127.0.0.1"),
    "mpich-4.0": ("hydra", 1, 4, 1, 4, 0, "127.0.0.1"),
    "mpich-4.2": ("hydra", 1, 4, 1, 4, 0, "127.0.0.1"),
    "open-mpi-4.1": ("Open MPI", 1, 4, 1, 4, 0, "127.0.0.1"),
    "open-mpi-5.0": ("Open MPI", 1, 4, 1, 4, 0, "127.0.0.1"),
    "srun-22.05": ("Slurm", 1, 4, 1, 4, 0, "127.0.0.1"),
    "srun-cray-shasta-22.05": ("Slurm", 1, 4, 1, 4, 0, "127.0.0.1"),
    "srun-cyclic-22.05": ("Slurm", 1, 3, 0, 1, 1, "node-0"),
    "srun-pmi2-22.05": ("Slurm", 1, 4, 1, 4, 0, "127.0.0.1"),
    "srun-pmix-22.05": ("Slurm", 1, 4, 1, 4, 0, "127.0.0.1"),
    "srun-two-nodes-22.05": ("Slurm", 3, 4, 1, 2, 1, "node-0"),
    "torchrun-2.13": ("torchrun", 1, 2, 1, 2, 0, "node-0"),
}
# These alone do not place a rank: each has its own test.
OTHERS = {
    "accelerate-1.15",
    "flux-cyclic-0.88",
    "flux-two-nodes-0.88",
    "mpich-4.0-in-sbatch-22.05",
    "prrte-3.0",
    "sbatch-22.05",
}
REQUIRED = {
    "Flux": "FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID FLUX_JOB_NNODES",
    "hydra": "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS",
    "Open MPI": "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE",
    "Slurm": "SLURM_PROCID SLURM_LOCALID SLURM_NODEID "
    "SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_STEP_NODELIST",
    "torchrun": "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT",
}
GAPS = [
    pytest.param(name, gap, id=f"{name} without {gap}")
    for name, place in PLACES.items()
    for gap in REQUIRED[place[0]].split()
]


def without(name: str, gap: str) -> dict[str, str]:
    """The recording without one variable, which it must have."""
    environ = recording(name)
    del environ[gap]
    return environ


def test_every_recording_is_tested() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.env")} == PLACES.keys() | OTHERS


@pytest.mark.parametrize("name", sorted(PLACES.keys() | OTHERS))
def test_a_recording_is_sorted_and_in_the_readme(name: str) -> None:
    lines = (RECORDINGS / f"{name}.env").read_text().splitlines()
    assert lines == sorted(set(lines))
    assert f"| {name} |" in (RECORDINGS / "README.md").read_text()


@pytest.mark.parametrize(("name", "place"), PLACES.items(), ids=PLACES)
def test_a_recorded_rank_has_its_launchers_placement(
    name: str, place: tuple[str, int, int, int, int, int, str]
) -> None:
    found = detect(recording(name))
    assert place == (
        found.launcher,
        found.rank,
        found.world_size,
        found.local_rank,
        found.local_world_size,
        found.node_rank,
        found.master_addr,
    )
    assert environment.warnings(found, recording(name)) == []


@pytest.mark.parametrize(("name", "gap"), GAPS)
def test_a_recorded_rank_without_one_variable_is_refused_and_the_error_names_the_variable(
    name: str, gap: str
) -> None:
    with pytest.raises(UsageError) as error:
        detect(without(name, gap))
    assert str(error.value).partition("but ")[2].startswith(f"not {gap} (launcher: {PLACES[name][0]}): ")


@pytest.mark.parametrize("name", ["launch-2.13", "torchrun-2.13"])
def test_torchruns_rank_without_its_mark_keeps_its_placement(name: str) -> None:
    found = detect(without(name, "TORCHELASTIC_RUN_ID"))
    assert (found.launcher, found.rank, found.world_size) == ("environment", 1, 2)


@pytest.mark.parametrize("name", ["srun-22.05", "srun-cyclic-22.05", "srun-two-nodes-22.05"])
def test_a_slurm_task_without_its_step_is_not_a_single_rank(name: str) -> None:
    with pytest.raises(UsageError, match=r"found SLURM_PROCID=[13], but srun does not set the number of ranks"):
        detect(without(name, "SLURM_STEP_ID"))


@pytest.mark.parametrize(("name", "place"), PLACES.items(), ids=PLACES)
def test_no_subset_of_a_launchers_variables_results_in_another_rank(
    name: str, place: tuple[str, int, int, int, int, int, str]
) -> None:
    whole = recording(name)
    names = {one for launcher in LAUNCHERS for one in (*launcher.variables, *launcher.marks)} & whole.keys()
    ranks = {launcher.rank for launcher in LAUNCHERS}
    for size in range(len(names) + 1):
        for left in combinations(sorted(names), size):
            environ = {one: value for one, value in whole.items() if one in left or one not in names}
            with contextlib.suppress(UsageError):
                found = detect(environ)
                expected = (0, 1, 0, 1) if ranks.isdisjoint(left) else place[1:5]
                assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == expected, left


def test_flux_on_two_nodes_needs_an_address_and_gives_each_the_same_number() -> None:
    environ = recording("flux-two-nodes-0.88")
    with pytest.raises(
        UsageError, match=r"MASTER_ADDR is not set, but the ranks are on 2 nodes \(launcher: Flux\)"
    ):
        detect(environ)
    found = detect({**environ, "MASTER_ADDR": "node-0"})
    assert (found.launcher, found.rank, found.world_size) == ("Flux", 3, 4)
    assert (found.local_rank, found.local_world_size, found.node_rank) == (1, 2, 1)


def test_fluxs_cyclic_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match=r"rank 1 of 4 on 2 nodes as local rank 0.*--taskmap block"):
        detect({**recording("flux-cyclic-0.88"), "MASTER_ADDR": "node-0"})


def test_a_process_of_accelerate_launch_on_several_machines_is_refused() -> None:
    with pytest.raises(UsageError, match=r"found MASTER_ADDR=node-0, but accelerate launch .*--mpirun_hostfile"):
        detect(recording("accelerate-1.15"))
    assert detect(without("accelerate-1.15", "MASTER_ADDR")).launcher == "single"


def test_an_sbatch_script_is_one_rank_with_a_warning() -> None:
    environ = recording("sbatch-22.05")
    found = detect(environ)
    assert (found.launcher, found.world_size) == ("single", 1)
    assert any(
        "allotted 4 tasks" in warning and "srun" in warning for warning in environment.warnings(found, environ)
    )


def test_mpich_inside_sbatch_is_the_innermost_and_its_proxies_steps_are_not_the_ranks() -> None:
    environ = recording("mpich-4.0-in-sbatch-22.05")
    assert (environ["SLURM_PROCID"], environ["SLURM_STEP_NUM_TASKS"]) == ("1", "2")
    with pytest.raises(
        UsageError, match=r"MASTER_ADDR is not set, but the ranks are on 2 nodes \(launcher: hydra\)"
    ):
        detect(environ)
    found = detect({**environ, "MASTER_ADDR": "node-0"})
    assert (found.launcher, found.rank, found.world_size) == ("hydra", 3, 4)
    assert (found.local_rank, found.local_world_size, found.node_rank) == (1, 2, 1)


@pytest.mark.parametrize("gap", REQUIRED["hydra"].split())
def test_without_one_variable_mpich_inside_sbatch_does_not_fall_back_to_slurms_step(gap: str) -> None:
    environ = {**without("mpich-4.0-in-sbatch-22.05", gap), "MASTER_ADDR": "node-0"}
    with pytest.raises(UsageError, match=rf"not {gap} \(launcher: hydra\).*contradicts Slurm"):
        detect(environ)


def test_a_rank_of_prterun_which_does_not_set_the_number_of_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"found PMIX_RANK=1, but .*mpirun"):
        detect(recording("prrte-3.0"))
    assert detect(without("prrte-3.0", "PMIX_RANK")).launcher == "single"


def test_the_users_own_variables_place_a_rank_of_prterun() -> None:
    own = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    found = detect({**recording("prrte-3.0"), **own})
    assert (found.launcher, found.rank, found.world_size) == ("environment", 1, 2)
