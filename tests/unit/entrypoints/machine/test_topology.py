"""The host's CPUs, memory and interfaces: from files that the test writes, and this machine's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoints.machine import cpus, processes, topology
from entrypoints.machine.facts import Core
from tests.unit.entrypoints.machines.layout import Machine, lay_out


def status(root: Path, allowed: str, **above: str) -> Path:
    """Writes root/proc/self/status and those of the processes above. `above`: "name=mask", nearest first."""
    chain = [("python", allowed), *above.items()]
    for index, (name, mask) in enumerate(chain):
        folder = root / "proc" / ("self" if index == 0 else str(999 + index))
        folder.mkdir(parents=True, exist_ok=True)
        parent = str(1000 + index) if index + 1 < len(chain) else "0"
        (folder / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\nCpus_allowed_list:\t{mask}\n")
    return root


EIGHT = Machine(((2,), (2,)), threads=2)


def test_hardware_threads_are_grouped_by_core_and_cores_ordered_by_socket(tmp_path: Path) -> None:
    found = topology.read(lay_out(EIGHT, tmp_path))
    assert [core.cpus for core in found.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [(core.socket, core.node) for core in found.cores] == [(0, 0), (0, 0), (1, 1), (1, 1)]


def test_only_allowed_cpus_are_there_and_their_siblings_are_known(tmp_path: Path) -> None:
    found = topology.read(lay_out(Machine(((2,), (2,)), threads=2, mask="1,3-5"), tmp_path))
    assert found.cores == (Core((4,), (0, 4), 0, 0), Core((1, 5), (1, 5), 0, 0), Core((3,), (3, 7), 1, 1))
    assert found.allowed == {1, 3, 4, 5}


def test_the_cpu_set_narrows_the_mask(tmp_path: Path) -> None:
    machine = Machine(((8,),), mask="0-5", groups={"cpuset.cpus.effective": "4-7"})
    assert topology.read(lay_out(machine, tmp_path)).allowed == {4, 5}


def test_a_hidden_topology_folder_leaves_cpuinfo(tmp_path: Path) -> None:
    lay_out(EIGHT, tmp_path)
    for folder in (tmp_path / "sys/devices/system/cpu").glob("cpu*/topology"):
        for file in folder.iterdir():
            file.unlink()
    found = topology.read(tmp_path)
    assert [core.cpus for core in found.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert "cores are taken from /proc/cpuinfo" in found.warnings[0]


def test_a_cpu_that_nobody_describes_is_a_core_of_its_own(tmp_path: Path) -> None:
    status(tmp_path, "0-2")
    (tmp_path / "proc/cpuinfo").write_text("".join(f"processor\t: {cpu}\nBogoMIPS\t: 50\n\n" for cpu in range(3)))
    found = topology.read(tmp_path)
    assert [core.cpus for core in found.cores] == [(0,), (1,), (2,)]
    (tmp_path / "proc/cpuinfo").unlink()
    found = topology.read(tmp_path)
    assert [core.cpus for core in found.cores] == [(0,), (1,), (2,)]
    assert any("each CPU counts as a core" in warning for warning in found.warnings)


def test_sizes_are_in_bytes(tmp_path: Path) -> None:
    found = topology.read(lay_out(EIGHT, tmp_path))
    assert found.memory_bytes == 262144000 * 1024
    assert [node.memory_bytes for node in found.nodes] == [131072000 * 1024] * 2


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
    assert cpus.read_model(lay_out(Machine(((1,),), flags=flags), tmp_path)).bf16 == expected


def test_bf16_is_what_a_limit_on_onednns_instructions_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(Machine(((1,),), flags="avx512f avx512_bf16 amx_bf16"), tmp_path)
    assert topology.read(tmp_path).bf16 == "amx_bf16"
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "avx512_core_bf16")
    assert topology.read(tmp_path).bf16 == "avx512_bf16"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    assert topology.read(tmp_path).bf16 == "emulated"


def test_features_are_the_ones_that_training_depends_on(tmp_path: Path) -> None:
    found = cpus.read_model(lay_out(Machine(((1,),), flags="sse avx2 amx_tile amx_bf16 avx512f"), tmp_path))
    assert found.features == ("amx_tile", "amx_bf16", "avx512f", "avx2")
    assert found.machine == "x86_64"


def test_only_the_first_cpus_entry_is_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "model name\t: A\nflags\t: avx2\n\nmodel name\t: B\nflags\t: amx_bf16\n"
    )
    assert cpus.read_model(tmp_path) == cpus.Cpu("x86_64", "A", ("avx2",), "emulated")


# The processes above


def test_the_launchers_own_mask_is_found_above_a_shell(tmp_path: Path) -> None:
    found = processes.cpu_masks(status(tmp_path, "0", bash="0-1", hydra_pmi_proxy="0-3", sshd="0-7"))
    assert (found.parent, found.agent, found.launcher) == (frozenset({0, 1}), None, frozenset(range(4)))


def test_torchruns_agent_is_the_nearest_python(tmp_path: Path) -> None:
    root = status(tmp_path, "0", sh="0", **{"python3.11": "0-3"}, slurmstepd="0-7")
    found = processes.cpu_masks(root)
    assert found.parent == frozenset({0})
    assert (found.agent, found.launcher) == (frozenset(range(4)), frozenset(range(8)))


@pytest.mark.parametrize("name", ["mpirun", "mpiexec", "orterun", "mpirun.openmpi", "mpiexec.openmpi"])
def test_open_mpi_4_is_known_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    assert processes.cpu_masks(status(tmp_path, "0", **{name: "0-3"})).launcher == frozenset(range(4))


def test_fluxs_shell_is_the_launcher_of_tasks_that_it_has_bound(tmp_path: Path) -> None:
    root = status(tmp_path, "0", sh="0", **{"flux-shell": "0-3", "flux-broker-0": "0-7"})
    assert processes.cpu_masks(root).launcher == frozenset(range(4))


def test_without_a_launcher_above_there_is_no_mask_of_it(tmp_path: Path) -> None:
    found = processes.cpu_masks(status(tmp_path, "0", bash="0-7", tini="0-7"))
    assert (found.agent, found.launcher) == (None, None)


def test_a_hidden_parent_counts_as_none(tmp_path: Path) -> None:
    root = status(tmp_path, "0", bash="0-7")
    (root / "proc" / "1000" / "status").unlink()
    assert processes.cpu_masks(root).parent is None


# This machine


def test_this_machine_is_read_as_the_kernel_says() -> None:
    found = topology.read()
    assert found.allowed == os.sched_getaffinity(0)
    assert {cpu for node in found.nodes for cpu in node.cpus} <= found.online
    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("text", "found"), [("", set()), ("3", {3}), ("0-2,8\n", {0, 1, 2, 8})])
def test_cpu_lists_are_parsed(text: str, found: set[int]) -> None:
    assert cpus.parse_cpu_list(text) == found
    assert cpus.format_cpu_list(frozenset(found)) == text.strip()
