"""The doctor in the image: each check from what it reads, and the two forms in which all are shown."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoints import preload, shared_memory
from entrypoints.doctor import checks, collectives, limits, machine, main, ranks, shm, single, versions
from entrypoints.doctor.checks import Check, Status
from entrypoints.doctor.ranks import Outcome
from entrypoints.errors import UsageError
from entrypoints.host import Core, MemoryLimit, NumaNode, Quota, Topology
from entrypoints.shared_memory import Space

MEBIBYTE, GIBIBYTE = 1 << 20, 1 << 30
HOST = Topology(
    machine="x86_64",
    model="Xeon",
    features=("amx_bf16", "avx512f"),
    bf16="amx_bf16",
    online=frozenset(range(8)),
    cores=(Core((0, 4), (0, 4)), Core((1,), (1, 5), node=1)),
    nodes=(NumaNode(0, (0, 4, 2, 6), GIBIBYTE), NumaNode(1, (1, 5, 3, 7), GIBIBYTE), NumaNode(2, (), GIBIBYTE)),
    memory_bytes=64 * GIBIBYTE,
)
REPORT = {"fp32_gflops": 100.0, "bf16_gflops": 300.0, "onednn": ""}
MET = {"backend": "ccl", "ranks": 2, "shared_memory": True, "small_seconds": 1e-5, "large_seconds": 2e-3}


# What is shown


def test_the_json_has_the_four_keys_of_every_check() -> None:
    document = json.loads(checks.document([Check("a", Status.WARNING, "b", "c")]))
    assert document == {"checks": [{"name": "a", "status": "warning", "detail": "b", "mend": "c"}]}


def test_a_row_has_its_mend_below_and_is_folded_under_its_detail() -> None:
    first, second, *more = checks.lines(Check("a", Status.ERROR, "word " * 20, "do this"), 60).splitlines()
    assert first.split()[:2] == ["a", "error"]
    assert second.index("word") == first.index("word")
    assert more[-1].strip() == "mend: do this"
    assert all(len(line) <= 60 for line in (first, second, *more))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], Status.OK),
        ([Status.OK, Status.WARNING], Status.WARNING),
        ([Status.ERROR, Status.WARNING], Status.ERROR),
    ],
)
def test_the_gravest_line_counts(found: list[Status], expected: Status) -> None:
    assert checks.worst(Check("", status, "") for status in found) is expected


def test_a_check_that_crashes_is_an_error_line() -> None:
    def crash() -> list[Check]:
        raise ZeroDivisionError("division\nby zero")

    (check,) = checks.attempt("a", crash)
    assert (check.name, check.status) == ("a", Status.ERROR)
    assert check.detail == "the check itself failed: ZeroDivisionError: division by zero"
    assert check.mend


def test_a_usage_error_of_a_check_is_its_detail_and_its_mend() -> None:
    def refuse() -> list[Check]:
        raise UsageError("found a: b, expected c: do this")

    (check,) = checks.attempt("a", refuse)
    assert (check.status, check.detail, check.mend) == (Status.ERROR, "found a: b, expected c", "do this")


@pytest.mark.parametrize(
    "argv", [["--local-world-size", "0"], ["--master-port", "x"], ["--jsn"]], ids=lambda argv: argv[0]
)
def test_bad_usage_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match=argv[0]):
        main.parse(argv)


# The machine


def test_the_cpus_are_told_with_what_limits_them() -> None:
    check = machine.cpus(HOST)
    assert "3 allowed (of 8 online, by a CPU set or an affinity mask): 0-1,4" in check.detail
    assert "2 cores of 2 hardware threads" in check.detail


def test_another_machine_is_an_error() -> None:
    assert machine.machine(HOST).status is Status.OK
    check = machine.machine(replace(HOST, machine="aarch64"))
    assert (check.status, check.mend) == (Status.ERROR, "use an x86_64 machine: the image is for it")


def test_the_quota_is_told_with_its_file() -> None:
    check = machine.quota(replace(HOST, quota=Quota(1.5, "/sys/fs/cgroup/cpu.max")))
    assert check.detail == "1.5 CPUs for all processes of the container (/sys/fs/cgroup/cpu.max)"


@pytest.mark.parametrize(
    ("policy", "nodes", "status"),
    [("default", 3, Status.OK), ("refused", 3, Status.WARNING), ("refused", 1, Status.OK)],
)
def test_a_forbidden_memory_policy_counts_where_there_are_nodes_to_choose(
    policy: str, nodes: int, status: Status
) -> None:
    check = machine.numa(replace(HOST, memory_policy=policy, nodes=HOST.nodes[:nodes]))
    assert check.status is status
    assert nodes == 1 or "2 nodes with CPUs, allowed CPUs on 0-1" in check.detail


def test_the_smaller_of_machine_and_limit_is_the_memory() -> None:
    limited = replace(HOST, memory_limit=MemoryLimit(3 * GIBIBYTE, "memory.max"))
    assert machine.memory(HOST, 8).status is Status.OK
    check = machine.memory(limited, 2)
    assert check.status is Status.WARNING
    assert "3.0 GiB (memory.max) for 2 ranks" in check.detail
    assert machine.memory(limited, 1).status is Status.OK


def test_what_hides_from_the_topology_is_a_warning() -> None:
    found = machine.examine(replace(HOST, warnings=("/sys cannot be read",)), 1)
    assert found[-1] == Check("topology", Status.WARNING, "/sys cannot be read", "see what hides /proc or /sys")


@pytest.mark.parametrize(
    ("soft", "status"), [(1024, Status.WARNING), (4096, Status.OK), (-1, Status.OK)], ids=["few", "enough", "none"]
)
def test_open_files_are_judged_by_what_data_loading_takes(soft: int, status: Status) -> None:
    assert limits.open_files(soft).status is status


# /dev/shm


@pytest.mark.parametrize(
    ("free_mib", "ranks", "cpus", "status", "said"),
    [
        (64, 1, 64, Status.OK, "a single rank on a node needs little"),
        (1, 1, 2, Status.ERROR, "data loading workers of 1 rank die of it"),
        (16, 2, 2, Status.WARNING, "16 of 2048 MiB free; backend ccl wants 50 for 2 ranks on a host with 2 CPUs"),
        (50, 2, 2, Status.OK, "backend ccl wants 50"),
        (1024, 2, 64, Status.WARNING, "backend ccl wants 1042 for 2 ranks on a host with 64 CPUs"),
    ],
    ids=["one rank", "nothing", "docker's least", "enough", "many CPUs"],
)
def test_shared_memory_is_judged_by_ranks_and_cpus(
    free_mib: int, ranks: int, cpus: int, status: Status, said: str
) -> None:
    check = shm.judge(Space(2048 * MEBIBYTE, free_mib * MEBIBYTE), ranks, cpus)
    assert check.status is status
    assert said in check.detail
    assert bool(check.mend) is (status is not Status.OK)


def test_the_mend_of_shared_memory_is_a_size_that_does() -> None:
    gigabytes = int(shared_memory.option(2, 64).split()[1].rstrip("g"))
    assert shm.judge(Space(gigabytes * GIBIBYTE, gigabytes * GIBIBYTE), 2, 64).status is Status.OK


# Versions


LOCK = "# pin\ntorch==2.13.0+cpu \\\n    --hash=sha256:00\nPyYAML==6.0 \\\n    --hash=sha256:11\n"


def test_a_lock_is_read_by_canonical_names() -> None:
    assert versions.parse(LOCK) == {"torch": "2.13.0+cpu", "pyyaml": "6.0"}


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ({"torch": "2.13.0+cpu", "pyyaml": "6.0", "more": "1"}, Status.OK, "all 2 packages are the lock's"),
        ({"torch": "2.13.0+cpu", "pyyaml": "5.0"}, Status.WARNING, "pyyaml 5.0 (the pin has 6.0)"),
        ({"torch": "2.13.0+cpu"}, Status.ERROR, "pyyaml missing"),
        (
            {"torch": "2.12.0", "pyyaml": "6.0", "oneccl-bind-pt": "2.13.0"},
            Status.ERROR,
            "oneccl-bind-pt 2.13.0 is built for that torch, found torch 2.12.0",
        ),
    ],
    ids=["the lock's", "another", "missing", "another torch under ccl"],
)
def test_versions_are_compared_with_the_lock(found: dict[str, str], status: Status, said: str) -> None:
    check = versions.judge("2.13", versions.parse(LOCK), found)
    assert check.status is status
    assert said in check.detail


def test_this_interpreters_own_packages_are_found() -> None:
    assert versions.installed()["pytest"] == pytest.__version__


# A single rank


LIBRARY = preload.LIBRARIES[0]


@pytest.mark.parametrize(
    ("wanted", "mapped", "status", "said"),
    [
        (["/x/libtcmalloc.so.4"], ["/x/libtcmalloc.so.4", "/bin/python"], Status.OK, "is mapped into a rank"),
        (["/x/libtcmalloc.so.4"], ["/bin/python"], Status.ERROR, "a rank has not mapped it"),
        ([], ["/x/libjemalloc.so.2"], Status.OK, "/x/libjemalloc.so.2, your own"),
        ([], ["/bin/python"], Status.WARNING, "was not found, so memory comes from the slower malloc"),
    ],
    ids=["mapped", "not mapped", "the user's own", "not found"],
)
def test_a_preload_counts_where_it_is_mapped(
    wanted: list[str], mapped: list[str], status: Status, said: str
) -> None:
    (check,) = single.preloads([LIBRARY], wanted, mapped)
    assert check.status is status
    assert said in check.detail
    assert bool(check.mend) is (status is not Status.OK)


def test_the_openmp_that_torch_brings_is_not_a_preload() -> None:
    (check,) = single.preloads([preload.LIBRARIES[1]], [], ["/venv/torch/lib/libgomp.so.1"])
    assert check.status is Status.WARNING


EXEC = "onednn_verbose,v1,primitive,exec,cpu,matmul,{},undef,src:bf16::blocked:ab::f0,,,64x64:64x64,0.2\n"


@pytest.mark.parametrize(
    ("flag", "report", "status", "said"),
    [
        ("avx512_bf16", {"onednn": EXEC.format("brg_matmul:avx512_core_bf16")}, Status.OK, "300 GFLOP/s in bf16"),
        ("amx_bf16", {"onednn": EXEC.format("brg_matmul:avx10_1_512_amx")}, Status.OK, "3.0 times"),
        ("emulated", {"onednn": EXEC.format("gemm:jit:bf16")}, Status.OK, "emulated"),
        ("emulated", {"bf16_gflops": 99.0}, Status.WARNING, "slower than fp32"),
        ("avx512_bf16", {"onednn": EXEC.format("gemm:jit:bf16")}, Status.WARNING, "instructions are not used"),
        ("avx512_bf16", {}, Status.OK, "unknown kernel"),
    ],
    ids=["avx512", "amx", "emulated", "slower", "hidden", "silent"],
)
def test_bf16_is_judged_by_speed_and_by_the_kernel(
    flag: str, report: dict[str, object], status: Status, said: str
) -> None:
    check = single.bf16(flag, {**REPORT, **report})
    assert check.status is status
    assert said in check.detail
    assert bool(check.mend) is (status is not Status.OK)


# Two ranks


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (Outcome((MET,)), Status.OK, "right, over shared memory: 4 KB in 0.01 ms, 8 MB in 2.0 ms"),
        (Outcome(({**MET, "shared_memory": False},)), Status.WARNING, "shared memory has room, but is not used"),
        (Outcome((MET,), "exit code 1: error: no"), Status.ERROR, "two ranks fail: exit code 1: error: no"),
        (Outcome(()), Status.ERROR, "silent"),
        (Outcome(({**MET, "ranks": 1},)), Status.ERROR, "1 rank(s) met over ccl, expected 2"),
    ],
    ids=["right", "over tcp", "failed", "silent", "alone"],
)
def test_an_allreduce_is_judged_by_what_its_ranks_report(outcome: Outcome, status: Status, said: str) -> None:
    check = collectives.judge("ccl", outcome, expect_shared_memory=True)
    assert check.status is status
    assert said in check.detail
    assert bool(check.mend) is (status is not Status.OK)


@pytest.mark.parametrize(
    ("environ", "status", "said"),
    [
        ({"PET_NNODES": "4:4", "PET_RDZV_BACKEND": "c10d"}, Status.OK, "a single rank"),
        ({"ALPS_APP_PE": "1"}, Status.ERROR, "found ALPS_APP_PE=1"),
    ],
    ids=["a pod", "a launcher that tells no place"],
)
def test_the_doctor_is_a_guest_in_a_pod_but_no_single_rank_of_a_launcher(
    environ: dict[str, str], status: Status, said: str
) -> None:
    check = next(main.examine(main.parse([]), environ))
    assert (check.name, check.status) == ("launcher", status)
    assert said in check.detail


def test_ranks_of_the_doctor_inherit_no_launcher() -> None:
    own = {"PATH": "/bin", "RANK": "3", "MASTER_ADDR": "node-0", "PET_NNODES": "2", "SLURM_PROCID": "1"}
    own |= {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "PALS_RANKID": "1", "PALS_NODEID": "1", "PMIX_RANK": "1"}
    own |= {"JSM_NAMESPACE_RANK": "1", "LSF_PM_TASKID": "1", "PBS_TASKNUM": "2", "HOROVOD_RANK": "1"}
    own |= {"ACCELERATE_MIXED_PRECISION": "no", "ALPS_APP_PE": "1"}
    own |= {"GLOO_SOCKET_IFNAME": "eth9", "OMP_NUM_THREADS": "4", "CCL_ATL_SHM": "0", "I_MPI_PIN": "0"}
    assert ranks.environ(own) == {"PATH": "/bin", "OMP_NUM_THREADS": "4", "CCL_ATL_SHM": "0"}


def test_reports_are_told_from_other_output() -> None:
    assert ranks.reports(f'noise\n{ranks.MARK}{{"a": 1}}\n{{"b": 2}}\n') == ({"a": 1},)


def test_a_command_that_hangs_is_ended_with_all_that_it_started() -> None:
    outcome = ranks.start(["sh", "-c", f"sleep 60 & echo '{ranks.MARK}{{\"child\": '$!'}}'; wait"], 1.0)
    (report,) = outcome.found
    assert outcome.problem.startswith("not done within 1 s")
    status = Path(f"/proc/{report['child']}/status")
    end = time.monotonic() + 30
    while is_running(status) and time.monotonic() < end:  # a signal takes its moment
        time.sleep(0.02)
    assert not is_running(status)


def is_running(status: Path) -> bool:
    """Not where the process has gone, or nobody has collected it yet."""
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_fails_is_told_by_its_own_error_line() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('error: no such thing\\nlast line')"]
    assert ranks.start(command, 30.0) == Outcome((), "exit code 1: error: no such thing")
