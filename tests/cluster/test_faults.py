"""Faults of a cluster's job: it ends in time, with a code, a cause and nothing left behind.

These tests cover what the launchers differ in; `./inv dev faults` injects every fault under both, on a real job.
"""

from pathlib import Path

import pytest

from tooling.checks.faults.faults import FAULTS
from tooling.checks.faults.trial import inject

# Of a collective. The bound for the end of a job is this and 30 s.
TIMEOUT_SECONDS = 8
STEPS = """
import time, torch, torch.distributed as dist
for step in range(100_000):
    dist.all_reduce(torch.ones(8))
    if dist.get_rank() == 0 and step % 10 == 0:
        print(f"step {step}", flush=True)
    time.sleep(0.05)
"""
CASES = [
    ("rank-killed", "mpirun"),
    ("rank-stopped", "torchrun"),
    ("rank-stopped", "mpirun"),
    ("node-killed", "mpirun"),
    ("node-cut-off", "torchrun"),
    ("node-cut-off", "mpirun"),
    ("out-of-memory", "mpirun"),
    ("launcher-killed", "mpirun"),
    ("interrupt", "mpirun"),
]


@pytest.mark.parametrize(("name", "launcher"), CASES, ids=["-".join(case) for case in CASES])
def test_a_fault_ends_the_job_in_time_with_a_code_a_cause_and_nothing_left(
    name: str, launcher: str, scripts: Path, image: str
) -> None:
    (scripts / "steps.py").write_text(STEPS)
    command = ("run", f"--timeout={TIMEOUT_SECONDS}", "/data/steps.py")
    fault = FAULTS[name]
    trial = inject(fault, launcher, [f"--data={scripts}"], command, r"step 10\b", TIMEOUT_SECONDS + 30)
    print(f"detected after {trial.detected_seconds} s, ended after {trial.ended_seconds:.1f} s: {trial.exit_code}")
    assert trial.exit_code not in (0, 2), trial.output
    assert trial.detected_seconds is not None or not fault.causes[launcher], trial.output
    assert trial.left == ()
    assert "tooling/" not in trial.output, trial.output  # a traceback of ours
