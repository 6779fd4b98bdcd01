"""The doctor's checks that start ranks, and the ranks themselves."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from cpu_train_stack.cli.checks import CheckStatus
from cpu_train_stack.doctor import main, ranks
from cpu_train_stack.doctor.ranks import DoctorRanks
from cpu_train_stack.plan import preload

REPORT = {"fp32_gflops": 100.0, "bf16_gflops": 300.0, "onednn": ""}
MET = {"backend": "ccl", "ranks": 2, "shared_memory": True, "small_seconds": 1e-5, "large_seconds": 2e-3}


# A single rank


LIBRARY = preload.LIBRARIES[0]


@pytest.mark.parametrize(
    ("wanted", "mapped", "status", "said"),
    [
        (["/x/libtcmalloc.so.4"], ["/x/libtcmalloc.so.4", "/bin/python"], CheckStatus.OK, "is mapped into a rank"),
        (["/x/libtcmalloc.so.4"], ["/bin/python"], CheckStatus.ERROR, "a rank has not mapped it"),
        ([], ["/x/libjemalloc.so.2"], CheckStatus.OK, "/x/libjemalloc.so.2 (your own)"),
        ([], ["/bin/python"], CheckStatus.WARNING, "was not found, so memory comes from the slower malloc"),
    ],
    ids=["mapped", "not mapped", "the user's own", "not found"],
)
def test_a_preload_is_judged_by_the_ranks_mapped_files(
    wanted: list[str], mapped: list[str], status: CheckStatus, said: str
) -> None:
    (check,) = ranks.preloads([LIBRARY], wanted, mapped)
    assert check.status is status
    assert said in check.detail
    assert bool(check.fix) is (status is not CheckStatus.OK)


def test_torchs_bundled_openmp_is_not_a_preload() -> None:
    (check,) = ranks.preloads([preload.LIBRARIES[1]], [], ["/venv/torch/lib/libgomp.so.1"])
    assert check.status is CheckStatus.WARNING


EXEC = "onednn_verbose,v1,primitive,exec,cpu,matmul,{},undef,src:bf16::blocked:ab::f0,,,64x64:64x64,0.2\n"


@pytest.mark.parametrize(
    ("flag", "report", "status", "said"),
    [
        (
            "avx512_bf16",
            {"onednn": EXEC.format("brg_matmul:avx512_core_bf16")},
            CheckStatus.OK,
            "300 GFLOP/s in bf16",
        ),
        ("amx_bf16", {"onednn": EXEC.format("brg_matmul:avx10_1_512_amx")}, CheckStatus.OK, "3.0 times"),
        ("emulated", {"onednn": EXEC.format("gemm:jit:bf16")}, CheckStatus.OK, "emulated"),
        ("emulated", {"bf16_gflops": 99.0}, CheckStatus.WARNING, "not faster than fp32"),
        (
            "avx512_bf16",
            {"onednn": EXEC.format("gemm:jit:bf16")},
            CheckStatus.WARNING,
            "instructions are not used",
        ),
        ("avx512_bf16", {}, CheckStatus.OK, "unknown kernel"),
    ],
    ids=["avx512", "amx", "emulated", "slower", "hidden", "silent"],
)
def test_bf16_is_judged_by_speed_and_by_the_kernel(
    flag: str, report: dict[str, object], status: CheckStatus, said: str
) -> None:
    check = ranks.bf16(flag, {**REPORT, **report})
    assert check.status is status
    assert said in check.detail
    assert bool(check.fix) is (status is not CheckStatus.OK)


# Two ranks


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (DoctorRanks((MET,)), CheckStatus.OK, "correct, over shared memory: 4 KB in 0.01 ms, 8 MB in 2.0 ms"),
        (
            DoctorRanks(({**MET, "shared_memory": False},)),
            CheckStatus.WARNING,
            "shared memory is large enough, but not used",
        ),
        (
            DoctorRanks((MET,), "exit code 1: error: no"),
            CheckStatus.ERROR,
            "two ranks failed: exit code 1: error: no",
        ),
        (DoctorRanks(()), CheckStatus.ERROR, "no output"),
        (DoctorRanks(({**MET, "ranks": 1},)), CheckStatus.ERROR, "1 rank met over ccl, expected 2"),
    ],
    ids=["correct", "over tcp", "failed", "no output", "alone"],
)
def test_an_allreduce_is_judged_by_its_ranks_reports(outcome: DoctorRanks, status: CheckStatus, said: str) -> None:
    check = ranks.allreduce("ccl", outcome, expect_shared_memory=True)
    assert check.status is status
    assert said in check.detail
    assert bool(check.fix) is (status is not CheckStatus.OK)


@pytest.mark.parametrize(
    ("environ", "status", "said"),
    [
        ({"PET_NNODES": "4:4", "PET_RDZV_BACKEND": "c10d"}, CheckStatus.OK, "a single rank"),
        ({"ALPS_APP_PE": "1"}, CheckStatus.ERROR, "found ALPS_APP_PE=1"),
    ],
    ids=["a pod", "a launcher that does not define the placement"],
)
def test_a_pods_variables_are_ignored_but_an_unknown_launchers_are_an_error(
    environ: dict[str, str], status: CheckStatus, said: str
) -> None:
    check = next(main.examine(main.DoctorOptions(), environ))
    assert (check.name, check.status) == ("launcher", status)
    assert said in check.detail


def test_the_doctors_ranks_inherit_no_launchers_variables() -> None:
    own = {"PATH": "/bin", "RANK": "3", "MASTER_ADDR": "node-0", "PET_NNODES": "2", "SLURM_PROCID": "1"}
    own |= {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "PALS_RANKID": "1", "PALS_NODEID": "1", "PMIX_RANK": "1"}
    own |= {"JSM_NAMESPACE_RANK": "1", "LSF_PM_TASKID": "1", "PBS_TASKNUM": "2", "HOROVOD_RANK": "1"}
    own |= {"ACCELERATE_MIXED_PRECISION": "no", "ALPS_APP_PE": "1"}
    own |= {"GLOO_SOCKET_IFNAME": "eth9", "OMP_NUM_THREADS": "4", "CCL_ATL_SHM": "0", "I_MPI_PIN": "0"}
    assert ranks.environ(own) == {"PATH": "/bin", "OMP_NUM_THREADS": "4", "CCL_ATL_SHM": "0"}


def test_reports_are_separated_from_other_output() -> None:
    assert ranks.reports(f'noise\n{ranks.MARK}{{"a": 1}}\n{{"b": 2}}\n') == ({"a": 1},)


REPORT_CHILD = f"echo '{ranks.MARK}{{\"child\": '$!'}}'"


@pytest.mark.parametrize(
    "script",
    [
        f"sleep 40 & {REPORT_CHILD}; wait",
        f"trap '' TERM; sleep 40 & {REPORT_CHILD}; wait",
        f'setsid sleep 40 & trap "kill $!; exit" TERM; {REPORT_CHILD}; wait',
    ],
    ids=["a child", "one that ignores SIGTERM", "a rank of launch's agent, in its own session"],
)
def test_a_command_that_hangs_is_ended_with_its_children(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "STOP_SECONDS", 0.5)
    began = time.monotonic()
    outcome = ranks.start(["sh", "-c", script], 1.0)
    (report,) = outcome.found
    assert outcome.problem.startswith("not done within 1 s")
    status = Path(f"/proc/{report['child']}/status")
    while is_running(status) and time.monotonic() < began + 20:  # a signal takes a moment to arrive
        time.sleep(0.02)
    assert time.monotonic() < began + 30
    assert not is_running(status)


def test_a_process_that_left_the_group_does_not_keep_the_doctor_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(ranks, "_DRAIN_SECONDS", 0.5)
    began = time.monotonic()
    assert ranks.start(["sh", "-c", "setsid sleep 40 & wait"], 1.0) == DoctorRanks((), "not done within 1 s")
    assert time.monotonic() < began + 30


def is_running(status: Path) -> bool:
    """False once the process has ended, also before its parent has waited for it."""
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_failed_command_is_reported_with_its_own_error_line() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('error: no such thing\\nlast line')"]
    assert ranks.start(command, 30.0) == DoctorRanks((), "exit code 1: error: no such thing")
