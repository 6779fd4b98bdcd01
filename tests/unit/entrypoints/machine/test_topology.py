"""The host's CPUs and memory: from files that the test writes, and this machine's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpu_train_stack.machine import topology
from cpu_train_stack.machine.facts import Core
from tests.unit.entrypoints.machines.layout import Machine, lay_out, write_status

EIGHT = Machine(((2,), (2,)), threads=2)


def test_hardware_threads_are_grouped_by_core_and_cores_ordered_by_socket(tmp_path: Path) -> None:
    found = topology.read(lay_out(EIGHT, tmp_path))
    assert [core.cpus for core in found.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [(core.socket, core.node) for core in found.cores] == [(0, 0), (0, 0), (1, 1), (1, 1)]


def test_cores_have_allowed_cpus_only_and_list_all_siblings(tmp_path: Path) -> None:
    found = topology.read(lay_out(Machine(((2,), (2,)), threads=2, mask="1,3-5"), tmp_path))
    assert found.cores == (Core((4,), (0, 4), 0, 0), Core((1, 5), (1, 5), 0, 0), Core((3,), (3, 7), 1, 1))
    assert found.allowed == {1, 3, 4, 5}


def test_the_cpu_set_narrows_the_mask(tmp_path: Path) -> None:
    machine = Machine(((8,),), mask="0-5", groups={"cpuset.cpus.effective": "4-7"})
    found = topology.read(lay_out(machine, tmp_path))
    assert (found.allowed, found.group_cpus) == (frozenset({4, 5}), frozenset({4, 5, 6, 7}))


@pytest.mark.parametrize("offline", ["", "4-7"], ids=["fewer CPUs than the kernel supports", "second threads off"])
def test_masks_of_the_processes_above_have_online_cpus_only(tmp_path: Path, offline: str) -> None:
    lay_out(Machine(((2,), (2,)), threads=2, offline=offline), tmp_path)
    found = topology.read(
        write_status(tmp_path, "0-127", sh="0-127", **{"python3.11": "0-127"}, hydra_pmi_proxy="0-127")
    )
    assert found.launcher_cpus == found.agent_cpus == found.parent_cpus == found.allowed == found.online


def test_a_launchers_mask_is_kept_if_the_online_cpus_are_hidden(tmp_path: Path) -> None:
    found = topology.read(write_status(tmp_path, "0-1", hydra_pmi_proxy="0-3"))
    assert found.allowed == {0, 1}
    assert found.launcher_cpus == frozenset(range(4))
    assert found.agent_cpus is None


def test_a_hidden_topology_folder_leaves_cpuinfo(tmp_path: Path) -> None:
    lay_out(EIGHT, tmp_path)
    for folder in (tmp_path / "sys/devices/system/cpu").glob("cpu*/topology"):
        for file in folder.iterdir():
            file.unlink()
    found = topology.read(tmp_path)
    assert [core.cpus for core in found.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert "cores are taken from /proc/cpuinfo" in found.warnings[0]


def test_an_undescribed_cpu_is_a_core(tmp_path: Path) -> None:
    write_status(tmp_path, "0-2")
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


def test_the_topologys_bf16_respects_onednn_max_cpu_isa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(Machine(((1,),), flags="avx512f avx512_bf16 amx_bf16"), tmp_path)
    assert topology.read(tmp_path).bf16 == "amx_bf16"
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "avx512_core_bf16")
    assert topology.read(tmp_path).bf16 == "avx512_bf16"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    assert topology.read(tmp_path).bf16 == "emulated"


def test_this_machine_is_read_as_the_kernel_says() -> None:
    found = topology.read()
    assert found.allowed == os.sched_getaffinity(0)
    assert {cpu for node in found.nodes for cpu in node.cpus} <= found.online
    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
