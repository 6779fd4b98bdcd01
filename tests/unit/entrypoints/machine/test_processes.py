"""The CPU masks of the processes above a rank, from files that the test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.machine import processes
from tests.unit.entrypoints.machines.layout import write_status


def test_the_launchers_own_mask_is_found_above_a_shell(tmp_path: Path) -> None:
    found = processes.cpu_masks(write_status(tmp_path, "0", bash="0-1", hydra_pmi_proxy="0-3", sshd="0-7"))
    assert (found.parent, found.agent, found.launcher) == (frozenset({0, 1}), None, frozenset(range(4)))


def test_torchruns_agent_is_the_nearest_python(tmp_path: Path) -> None:
    root = write_status(tmp_path, "0", sh="0", **{"python3.11": "0-3"}, slurmstepd="0-7")
    found = processes.cpu_masks(root)
    assert found.parent == frozenset({0})
    assert (found.agent, found.launcher) == (frozenset(range(4)), frozenset(range(8)))


@pytest.mark.parametrize("name", ["mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi"])
def test_open_mpi_4_is_known_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    assert processes.cpu_masks(write_status(tmp_path, "0", **{name: "0-3"})).launcher == frozenset(range(4))


def test_fluxs_shell_is_the_launcher_of_tasks_that_it_has_bound(tmp_path: Path) -> None:
    root = write_status(tmp_path, "0", sh="0", **{"flux-shell": "0-3", "flux-broker-0": "0-7"})
    assert processes.cpu_masks(root).launcher == frozenset(range(4))


def test_there_is_no_launchers_mask_without_a_launcher_above(tmp_path: Path) -> None:
    found = processes.cpu_masks(write_status(tmp_path, "0", bash="0-7", tini="0-7"))
    assert (found.agent, found.launcher) == (None, None)


def test_a_hidden_parent_counts_as_none(tmp_path: Path) -> None:
    root = write_status(tmp_path, "0", bash="0-7")
    (root / "proc" / "1000" / "status").unlink()
    assert processes.cpu_masks(root).parent is None
