"""The host's CPUs, read from a /proc that the test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoints import topology


def proc(root: Path, allowed: str, cpus: list[tuple[int, int, int]], flags: str = "", **ancestors: str) -> Path:
    """Writes root/proc. `cpus`: (number, package, core). `ancestors`: "name=mask", nearest first."""
    folder = root / "proc"
    (folder / "self").mkdir(parents=True)
    chain = list(ancestors.items())
    parent = "1000" if chain else "0"
    (folder / "self" / "status").write_text(
        f"Name:\tpython\nPPid:\t{parent}\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t0\n"
    )
    for index, (name, mask) in enumerate(chain):
        status = folder / str(1000 + index)
        status.mkdir()
        above = str(1001 + index) if index + 1 < len(chain) else "0"
        (status / "status").write_text(f"Name:\t{name}\nPPid:\t{above}\nCpus_allowed_list:\t{mask}\n")
    blocks = [
        f"processor\t: {cpu}\nmodel name\t: Test CPU\nphysical id\t: {package}\ncore id\t\t: {core}\n"
        f"flags\t\t: fpu {flags}\n"
        for cpu, package, core in cpus
    ]
    (folder / "cpuinfo").write_text("\n".join(blocks) + "\n")
    return root


# Two packages of two cores of two hardware threads, numbered as Linux does: all first threads, then all second.
EIGHT = [(cpu, cpu % 4 // 2, cpu % 2) for cpu in range(8)]


def test_hardware_threads_are_grouped_by_core_and_cores_ordered_by_package(tmp_path: Path) -> None:
    assert topology.read(proc(tmp_path, "0-7", EIGHT)).cores == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_only_allowed_cpus_are_there(tmp_path: Path) -> None:
    found = topology.read(proc(tmp_path, "1,3-5", EIGHT))
    assert found.cores == ((4,), (1, 5), (3,))
    assert found.allowed == {1, 3, 4, 5}


def test_a_cpu_without_a_core_number_is_a_core_of_its_own(tmp_path: Path) -> None:
    root = proc(tmp_path, "0-2", [])
    (root / "proc" / "cpuinfo").write_text("".join(f"processor\t: {cpu}\nBogoMIPS\t: 50\n\n" for cpu in range(3)))
    assert topology.read(root).cores == ((0,), (1,), (2,))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512_bf16 amx_tile amx_bf16", "amx_bf16"),
        ("avx512f avx512_bf16", "avx512_bf16"),
        ("avx2 avx512f", "emulated"),
        ("not_avx512_bf16_either", "emulated"),
    ],
)
def test_bf16_is_the_best_instruction_set_or_emulated(tmp_path: Path, flags: str, expected: str) -> None:
    assert topology.read(proc(tmp_path, "0", [(0, 0, 0)], flags)).bf16 == expected


def test_the_launchers_own_mask_is_found_above_a_shell(tmp_path: Path) -> None:
    root = proc(tmp_path, "0", EIGHT, bash="0", hydra_pmi_proxy="0-3", sshd="0-7")
    assert topology.read(root).launcher_cpus == frozenset({0, 1, 2, 3})


@pytest.mark.parametrize("name", ["mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi"])
def test_open_mpi_4_is_known_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    assert topology.read(proc(tmp_path, "0", EIGHT, **{name: "0-3"})).launcher_cpus == frozenset({0, 1, 2, 3})


def test_without_a_launcher_above_there_is_no_mask_of_it(tmp_path: Path) -> None:
    assert topology.read(proc(tmp_path, "0", EIGHT, bash="0-7", tini="0-7")).launcher_cpus is None


def test_a_hidden_parent_counts_as_none(tmp_path: Path) -> None:
    root = proc(tmp_path, "0", EIGHT, bash="0-7")
    (root / "proc" / "1000" / "status").unlink()
    assert topology.read(root).launcher_cpus is None


def test_this_machine_is_read_as_the_kernel_says() -> None:
    assert topology.read().allowed == os.sched_getaffinity(0)


@pytest.mark.parametrize(("text", "cpus"), [("", set()), ("3", {3}), ("0-2,8\n", {0, 1, 2, 8})])
def test_cpu_lists_are_parsed(text: str, cpus: set[int]) -> None:
    assert topology.parse_cpu_list(text) == cpus
