"""The batch script of ./inv manifest slurm, with stand-ins for Slurm's commands."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tooling.hpc import slurm
from tooling.hpc.slurm import SlurmJob

# The ranks' srun begins with --kill-on-bad-exit, that which asks the nodes with --quiet.
SRUN = """\
case "$1" in --quiet) exit "$NODES_CODE"; esac
for word; do case "$word" in CPU_TRAIN_STACK_STOP=/output/*) stop="$FOLDER/${word#*=/output/}"; esac; done
echo "$MASTER_PORT" > "$STARTED"
if [ "$STOPS" ]; then
    until [ -e "$stop" ]; do sleep 0.05; done
    rm "$stop"
    exit "$RANKS_CODE"
fi
until [ -e "$RANKS_END" ]; do sleep 0.05; done
exit "$RANKS_CODE"
"""
# Slurm ends the ranks of a job that is requeued.
SCONTROL = 'echo "scontrol $*"; touch "$RANKS_END"'
STAND_INS = {"srun": SRUN, "squeue": 'echo "$STATE"', "scontrol": SCONTROL}
REQUEUED = "scontrol requeue 7"


@dataclass
class Script:
    """A running batch script. `ranks_end`: once this file exists, the ranks end."""

    process: subprocess.Popen[str]
    started: Path
    ranks_end: Path

    def wait_for_ranks(self) -> None:
        deadline = time.monotonic() + 30
        while not self.started.exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self, code: int, tell: bool = True) -> str:
        """The output of the script, which must exit with `code`. `tell`: whether the ranks end now."""
        if tell:
            self.ranks_end.touch()
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == code, output
        return output


Start = Callable[..., Script]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the script of a job with --time: start(STATE="RUNNING", max_restarts=2)."""
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    started, ranks_end = tmp_path / "started", tmp_path / "end"

    def begin(max_restarts: int = 20, **variables: str) -> Script:
        job = SlurmJob(
            command=("train",), image="/stack", output=str(tmp_path), time="60", max_restarts=max_restarts
        )
        environ: Mapping[str, str] = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "2",
            "STATE": "RUNNING",
            "FOLDER": str(tmp_path),
            "STOPS": "",
            "RANKS_CODE": "0",
            "NODES_CODE": "0",
            "STARTED": str(started),
            "RANKS_END": str(ranks_end),
            **variables,
        }
        process = subprocess.Popen(
            ["bash", "-c", job.script()],
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return Script(process, started, ranks_end)

    return begin


@pytest.mark.parametrize("code", [0, 3], ids=["success", "failure"])
def test_the_script_exits_with_the_code_of_the_ranks(start: Start, code: int) -> None:
    assert start(RANKS_CODE=str(code)).end(code) == ""


def test_a_job_whose_ranks_fail_is_requeued_if_a_node_does_not_answer(start: Start) -> None:
    output = start(RANKS_CODE="3", NODES_CODE="1").end(3)
    assert output == f"job 7: a node does not answer: requeueing\n{REQUEUED}\n"


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "PENDING", ""], ids=lambda state: state or "unknown")
def test_a_job_that_no_longer_runs_is_not_requeued(start: Start, state: str) -> None:
    assert start(RANKS_CODE="3", NODES_CODE="1", STATE=state).end(3) == ""


def test_a_job_is_requeued_once_its_ranks_have_stopped_before_the_time_limit(start: Start) -> None:
    script = start(STOPS="yes", RANKS_CODE="143")
    script.wait_for_ranks()
    script.process.send_signal(signal.SIGUSR1)
    assert script.end(143) == f"job 7: stopped before the time limit: requeueing\n{REQUEUED}\n"


def test_a_job_that_does_not_stop_is_requeued_before_the_time_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "CHECKPOINT_SECONDS", 1)
    script = start()
    script.wait_for_ranks()
    script.process.send_signal(signal.SIGUSR1)
    assert script.end(0, tell=False) == f"job 7: the time limit is near: requeueing\n{REQUEUED}\n"


@pytest.mark.parametrize("stops", ["", "yes"], ids=["during the training", "after the last step"])
@pytest.mark.parametrize("code", [0, 2], ids=["success", "full disk"])
def test_a_job_that_ends_just_before_its_time_limit_is_not_requeued(start: Start, stops: str, code: int) -> None:
    """train deletes the file that asks it to stop after its last step too."""
    script = start(STOPS=stops, RANKS_CODE=str(code))
    script.wait_for_ranks()
    script.process.send_signal(signal.SIGUSR1)
    assert script.end(code) == ""


def test_a_job_that_may_not_be_requeued_saves_a_checkpoint_too(start: Start) -> None:
    script = start(max_restarts=1, SLURM_RESTART_COUNT="1", STOPS="yes", RANKS_CODE="75")
    script.wait_for_ranks()
    script.process.send_signal(signal.SIGUSR1)
    output = script.end(75)
    assert "stopped before the time limit: not requeued after 1 restarts" in output
    assert REQUEUED not in output


def test_a_job_with_wrong_input_is_not_requeued(start: Start) -> None:
    assert start(RANKS_CODE="2", NODES_CODE="1").end(2) == ""


def test_a_cancelled_job_is_not_requeued(start: Start) -> None:
    script = start(RANKS_CODE="143")
    script.wait_for_ranks()
    script.process.terminate()
    assert script.end(-signal.SIGTERM) == ""


@pytest.mark.parametrize(("restarts", "is_requeued"), [("1", True), ("2", False)], ids=["one", "two"])
def test_a_job_is_requeued_only_as_often_as_allowed(start: Start, restarts: str, is_requeued: bool) -> None:
    output = start(RANKS_CODE="3", NODES_CODE="1", SLURM_RESTART_COUNT=restarts, max_restarts=2).end(3)
    assert (REQUEUED in output) == is_requeued
    assert ("not requeued after 2 restarts" in output) != is_requeued


def test_a_job_that_slurm_restarted_too_often_starts_no_ranks(start: Start) -> None:
    script = start(SLURM_RESTART_COUNT="3", max_restarts=2)
    assert script.end(1) == "job 7: restarted 3 times, expected 2 at most: see --max-restarts\n"
    assert not script.started.exists()


@pytest.mark.parametrize(("job", "port"), [("7", "20007"), ("1234567", "24567")])
def test_jobs_on_the_same_node_meet_at_different_ports(start: Start, job: str, port: str) -> None:
    script = start(SLURM_JOB_ID=job)
    script.end(0)
    assert script.started.read_text() == f"{port}\n"
