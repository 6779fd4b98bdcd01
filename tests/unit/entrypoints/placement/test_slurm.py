"""Slurm's short forms of tasks and node lists, and the daemons that srun starts for Open MPI."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.detect import detect
from cpu_train_stack.placement.slurm import expand_nodelist, tasks_per_node
from tests.unit.entrypoints import launcher_environments as recorded
from tests.unit.entrypoints.placement.placements import ADDRESS, place, refused


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


MANY_NODES = ("n[0-99999999999]", "n[0-999]r[0-999]", "n[0-60000],m[0-60000]", f"n[{'9' * 5000}]")


@pytest.mark.parametrize("text", ["٣", "2(x٣)", "²", "", "1(x99999999999)", "1(x60000),1(x60000)", "9" * 5000])
def test_other_text_and_too_many_nodes_are_not_numbers_of_tasks(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE"):
        tasks_per_node(text)


@pytest.mark.parametrize("step", ["²", "٣"])
def test_a_step_in_non_ascii_digits_is_not_a_shell_step(step: str) -> None:
    assert detect({**recorded.srun(1, "2", [2], "node01"), "SLURM_STEP_ID": step}).launcher == "Slurm"


@pytest.mark.parametrize("text", ["node[٣]", "node[1-", "node[a-b]", "", ",", "node[1-2", *MANY_NODES])
def test_broken_node_lists_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST"):
        expand_nodelist(text)


@pytest.mark.parametrize("launcher", [recorded.open_mpi_4, recorded.open_mpi_5], ids=["4", "5"])
@pytest.mark.parametrize(
    ("rank", "daemons"),
    [(3, recorded.srun(0, "1", [1], "node02")), (5, recorded.srun(1, "1(x2)", [1, 1], "node[02-03]"))],
    ids=["two nodes", "three nodes"],
)
def test_open_mpi_in_a_slurm_allocation_starts_its_daemons_on_the_other_nodes(
    launcher: Callable[[int, int, int], dict[str, str]], rank: int, daemons: dict[str, str]
) -> None:
    found = detect({**daemons, **launcher(rank, rank + 1, 2), **ADDRESS})
    assert (found.launcher, place(found)) == ("Open MPI", (rank, rank + 1, 1, 2, rank // 2))


def test_only_open_mpi_starts_no_daemon_on_its_own_node() -> None:
    environ = {**recorded.srun(1, "1(x2)", [1, 1], "node[02-03]"), **recorded.intel_mpi(5, 6, 2), **ADDRESS}
    assert "hydra reports rank 5 of 6" in refused(environ)
