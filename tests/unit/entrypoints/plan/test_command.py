"""The command line of `plan`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan import command as plan
from tests.unit.entrypoints import ROOT
from tests.unit.entrypoints import launcher_environments as recorded


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert plan.main(list(argv)) == 0
    return capsys.readouterr().out


def test_what_if_plans_any_rank_of_any_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(
        run(capsys, "--json", "--local-world-size", "4", "--local-rank", "3", "--world-size", "8")
    )
    assert (document["local_rank"], document["local_world_size"], document["world_size"]) == (3, 4, 8)
    assert document["launcher"] == "what-if"
    assert document["environment"]["LOCAL_RANK"] == "3"
    assert document["omp_num_threads"] >= 1


def test_what_if_needs_no_launcher_beside_a_running_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NNODES", "2")  # of a Kubeflow pod
    monkeypatch.setenv("MASTER_ADDR", "job-worker-0")
    document = json.loads(run(capsys, "--json", "--local-world-size", "2"))
    assert (document["launcher"], document["environment"]["MASTER_ADDR"]) == ("what-if", "job-worker-0")
    with pytest.raises(UsageError, match="PET_NNODES=2"):
        plan.main([])


def test_the_table_shows_the_ranks_that_srun_placed_here_in_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"SLURM_PROCID": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_GTIDS": "0,2"}
    for name, value in {**recorded.recording("srun-cyclic-22.05"), **here, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    table = run(capsys)
    assert "\nrank 0      cores " in table
    assert "\nrank 2      cores " in table
    assert "\nrank 1 " not in table


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--local-rank", "1"], "need --local-world-size"),
        (["--world-size", "2"], "need --local-world-size"),
        (["--local-world-size", "2", "--local-rank", "2"], "--local-rank is 2, expected an integer from 0 to 1"),
        (
            ["--local-world-size", "2", "--local-rank", "-1"],
            "found '-1', expected an integer of 0 or more",
        ),
        (["--local-world-size", "2", "--local-rank", "²"], "--local-rank: found '²'"),
        (["--local-world-size", "²"], "found '²', expected a number of ranks from 1 to 1024"),
        (["--local-world-size", "0"], "found '0', expected a number of ranks from 1 to 1024"),
        (["--local-world-size", "4", "--world-size", "2"], "local_world_size is 4, expected 1 to 2"),
    ],
)
def test_impossible_options_are_refused_in_one_line(argv: list[str], line: str) -> None:
    with pytest.raises(UsageError, match=line) as error:
        plan.main(argv)
    assert "\n" not in str(error.value)


def test_the_table_shows_every_rank_of_the_node_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    table = run(capsys, "--local-world-size", "2", "--local-rank", "1")
    assert "\nrank 0      cores " in table
    assert "\nrank 1      cores " in table
    assert "\nbecause     share 1 of 2" in table or "\nbecause     2 ranks share 1 CPU" in table
    assert "rank 0" not in run(capsys)


def test_the_document_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "--json", "--backend", "gloo"))
    assert document["backend"] == "gloo"
    assert document["memory_policy"] == {"mode": "default", "nodes": []}
    assert {"nodes", "dataloader_workers", "bf16", "reasons", "warnings"} <= set(document)


def test_plan_imports_neither_torch_nor_ctypes_on_a_machine_with_one_numa_node() -> None:
    code = (
        "import sys; from cpu_train_stack.plan import command; "
        "command.main(['--json']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stderr.split())
    assert "cpu_train_stack.plan.planner" in loaded
    assert not loaded & {"torch", "numpy", "psutil", "transformers"}
    if len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) < 2:
        assert "ctypes" not in loaded


def test_the_interface_is_among_the_reasons_or_its_error_among_the_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in recorded.torchrun(0, 2, 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    reasons = json.loads(run(capsys, "--json"))["reasons"]
    assert "the ranks communicate over lo: 127.0.0.1 on the route to localhost (127.0.0.1)" in reasons
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert "the ranks communicate over lo: GLOO_SOCKET_IFNAME=lo" in json.loads(run(capsys, "--json"))["reasons"]
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    assert "'no-such-host.invalid' does not resolve" in json.loads(run(capsys, "--json"))["warnings"][-1]


def test_a_rank_of_many_is_placed_by_its_own_numbers() -> None:
    place = plan.what_if(DistributedEnvironment(), 4, 2, None)
    assert (place.rank, place.world_size, place.launcher) == (2, 4, "what-if")


@pytest.mark.skipif(
    shutil.which("taskset") is None or len(os.sched_getaffinity(0)) < 2, reason="needs taskset and two CPUs"
)
@pytest.mark.parametrize("which", ["each rank", "all ranks"])
def test_a_rank_that_taskset_has_bound_under_torchrun_keeps_its_cpu(which: str) -> None:
    last = str(max(os.sched_getaffinity(0)))
    rank_command = [sys.executable, "-m", "cpu_train_stack", "plan", "--json"]
    agent = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    bind = ["taskset", "-c", last]
    command = (
        [sys.executable, "-c", agent, *bind, *rank_command]
        if which == "each rank"
        else [*bind, sys.executable, "-c", agent, *rank_command]
    )
    environ = {**os.environ, **recorded.torchrun(0, 2, 2)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=True)
    document = json.loads(done.stdout)
    assert document["cores"] == [int(last)]
    bound = any("has bound this rank to 1 core already" in reason for reason in document["reasons"])
    assert bound is (which == "each rank")
    assert any("2 ranks on this node, but only 1 CPU" in warning for warning in document["warnings"]) is not bound
