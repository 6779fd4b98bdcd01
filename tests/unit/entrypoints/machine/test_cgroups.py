"""CPU quota, memory limit and CPU set from control groups of both versions, as containers see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.machine import cgroups
from cpu_train_stack.machine.cgroups import Limits
from cpu_train_stack.machine.facts import MemoryLimit, Quota
from tests.unit.entrypoints.machines.layout import Machine, lay_out
from tests.unit.entrypoints.machines.recorded import V1_MOUNTS, V1_OWN

V2 = "30 23 0:26 / /sys/fs/cgroup ro,nosuid,nodev - cgroup2 cgroup rw,nsdelegate\n"


def limits(root: Path, own: str, mounts: str, groups: dict[str, str]) -> Limits:
    return cgroups.read_limits(lay_out(Machine(((2,),), own=own, mounts=mounts, groups=groups), root))


@pytest.mark.parametrize(
    ("text", "cpus"), [("150000 100000", 1.5), ("50000 100000", 0.5), ("400000 50000", 8.0), ("max 100000", None)]
)
def test_the_quota_of_version_2(tmp_path: Path, text: str, cpus: float | None) -> None:
    found = limits(tmp_path, "0::/\n", V2, {"cpu.max": text})
    assert found.quota == (Quota(cpus, "/sys/fs/cgroup/cpu.max") if cpus else None)
    assert not found.warnings


@pytest.mark.parametrize(("quota", "cpus"), [("150000", 1.5), ("-1", None)])
def test_the_quota_of_version_1(tmp_path: Path, quota: str, cpus: float | None) -> None:
    folder = "cpu,cpuacct"
    groups = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}
    found = limits(tmp_path, V1_OWN, V1_MOUNTS, groups).quota
    assert found == (Quota(cpus, f"/sys/fs/cgroup/{folder}/cpu.cfs_quota_us") if cpus else None)


@pytest.mark.parametrize(
    ("groups", "cpus"),
    [
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
        ({"a/cpu.max": "max 100000", "a/b/cpu.max": "300000 100000"}, 3.0),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "300000 100000"}, 2.0),
        ({"a/cpu.max": "900000 100000", "a/b/cpu.max": "300000 100000", "other/cpu.max": "1000 100000"}, 3.0),
    ],
    ids=["above", "own", "above is tighter", "not a neighbour's"],
)
def test_the_tightest_quota_of_the_group_and_its_parents_applies(
    tmp_path: Path, groups: dict[str, str], cpus: float
) -> None:
    found = limits(tmp_path, "0::/a/b\n", V2, groups).quota
    assert found is not None
    assert found.cpus == cpus


@pytest.mark.parametrize(
    ("own", "top"),
    [
        ("0::/\n", "/"),  # its own namespace, as Docker creates it on version 2
        ("0::/docker/abc\n", "/docker/abc"),  # the host's namespace, the container's group mounted
        ("0::/../..\n", "/"),  # a process that stands outside of the namespace it looks from
        ("0::/\n", "/../.."),  # a mount from outside of the namespace
        ("0::/somewhere/else\n", "/docker/abc"),
        ("0::/gone\n", "/"),
    ],
)
def test_the_mounted_group_applies_if_the_groups_path_does_not_exist(tmp_path: Path, own: str, top: str) -> None:
    found = limits(tmp_path, own, V2.replace(" / /sys", f" {top} /sys"), {"cpu.max": "250000 100000"})
    assert found.quota == Quota(2.5, "/sys/fs/cgroup/cpu.max")


def test_a_path_below_the_mounted_group_is_followed(tmp_path: Path) -> None:
    mounts = V2.replace(" / /sys", " /docker/abc /sys")
    found = limits(tmp_path, "0::/docker/abc/job\n", mounts, {"job/cpu.max": "100000 100000", "cpu.max": "max 1"})
    assert found.quota == Quota(1.0, "/sys/fs/cgroup/job/cpu.max")


def test_a_group_whose_name_starts_like_the_mounted_groups_is_another_group(tmp_path: Path) -> None:
    mounts = V2.replace(" / /sys", " /docker/a /sys")
    found = limits(tmp_path, "0::/docker/ab\n", mounts, {"b/cpu.max": "100000 100000", "cpu.max": "300000 100000"})
    assert found.quota == Quota(3.0, "/sys/fs/cgroup/cpu.max")


def test_both_versions_at_once_are_both_read(tmp_path: Path) -> None:
    mounts = V1_MOUNTS + "90 84 0:38 / /sys/fs/cgroup/unified ro - cgroup2 cgroup rw\n"
    groups = {
        "cpu,cpuacct/cpu.cfs_quota_us": "400000",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "unified/job/memory.max": "1000000",
        "memory/memory.limit_in_bytes": "2000000",
    }
    found = limits(tmp_path, V1_OWN + "0::/job\n", mounts, groups)
    assert found.quota == Quota(4.0, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us")
    assert found.memory == MemoryLimit(1000000, "/sys/fs/cgroup/unified/job/memory.max")


def test_unlimited_memory_is_no_limit(tmp_path: Path) -> None:
    groups = {"memory/memory.limit_in_bytes": "9223372036854771712"}
    assert limits(tmp_path / "1", V1_OWN, V1_MOUNTS, groups).memory is None
    assert limits(tmp_path / "2", "0::/\n", V2, {"memory.max": "max"}).memory is None


def test_a_mount_point_with_spaces_is_found(tmp_path: Path) -> None:
    found = limits(
        tmp_path, "0::/\n", V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/a\\040b "), {"a b/cpu.max": "1 2"}
    )
    assert found.quota == Quota(0.5, "/sys/fs/cgroup/a b/cpu.max")


def test_the_cpu_set_is_the_effective_one(tmp_path: Path) -> None:
    assert limits(tmp_path / "2", "0::/\n", V2, {"cpuset.cpus.effective": "5,7,9-12"}).cpuset == "5,7,9-12"
    groups = {"cpuset/cpuset.cpus": "0-7", "cpuset/cpuset.effective_cpus": "4-7"}
    assert limits(tmp_path / "1", V1_OWN, V1_MOUNTS, groups).cpuset == "4-7"


@pytest.mark.parametrize("text", ["150000", "a b", "1 0"])
def test_a_quota_that_cannot_be_read_is_a_warning(tmp_path: Path, text: str) -> None:
    found = limits(tmp_path, "0::/\n", V2, {"cpu.max": text})
    assert found.quota is None
    assert "expected a quota and a period" in found.warnings[0]


def test_no_control_groups_at_all_are_a_warning(tmp_path: Path) -> None:
    assert "CPU quotas and memory limits cannot be read" in limits(tmp_path, "", "", {}).warnings[0]
    assert cgroups.read_limits(tmp_path / "nowhere").warnings


def test_an_unreadable_file_is_a_warning(tmp_path: Path) -> None:
    limits(tmp_path, "0::/\n", V2, {"memory.max": "1000"})
    (tmp_path / "sys/fs/cgroup/cpu.max").mkdir()  # reading fails, for root too
    found = cgroups.read_limits(tmp_path)
    assert found.memory is not None
    assert "cpu.max cannot be read" in found.warnings[0]


def test_this_machine_is_read_without_a_warning() -> None:
    code = "from cpu_train_stack.machine import cgroups; print(*cgroups.read_limits().warnings)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    ("own", "mounts", "file", "text"),
    [
        ("0::/\n", V2, "cpu.stat", "usage_usec 9000000\nnr_throttled 7\nthrottled_usec 2500000\n"),
        (V1_OWN, V1_MOUNTS, "cpu,cpuacct/cpu.stat", "nr_periods 9\nnr_throttled 7\nthrottled_time 2500000000\n"),
        ("0::/docker/abc\n", V2, "docker/abc/cpu.stat", "nr_throttled 7\nthrottled_usec 2500000\n"),
    ],
    ids=["version 2", "version 1", "the host's namespace"],
)
def test_the_time_in_which_the_quota_throttled_the_process_is_read(
    own: str, mounts: str, file: str, text: str, tmp_path: Path
) -> None:
    assert cgroups.throttled_seconds(tmp_path) == 0
    lay_out(Machine(((2,),), own=own, mounts=mounts, groups={file: text}), tmp_path)
    assert cgroups.throttled_seconds(tmp_path) == pytest.approx(2.5)


@pytest.mark.parametrize("own", [0, 2_000_000])
def test_pauses_by_the_quotas_of_parents_are_read_too(own: int, tmp_path: Path) -> None:
    groups = {
        "train.slice/cpu.max": "200000 100000\n",
        "train.slice/cpu.stat": "nr_throttled 40\nthrottled_usec 90000000\n",
        "train.slice/job.scope/cpu.stat": f"nr_throttled 9\nthrottled_usec {own}\n",
    }
    lay_out(Machine(((2,),), own="0::/train.slice/job.scope\n", mounts=V2, groups=groups), tmp_path)
    assert cgroups.throttled_seconds(tmp_path) == pytest.approx(90.0 + own / 1e6)
