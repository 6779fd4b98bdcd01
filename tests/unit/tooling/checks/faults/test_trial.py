"""The wait for a job that the fault is injected into."""

import subprocess
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.checks.faults import trial


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(
            "exit 3", "the job ended with exit code 3 without printing 'step 1': no such pin", id="ended"
        ),
        pytest.param("exec sleep 60", "the job ran for 0 s without printing 'step 1': no such pin", id="hangs"),
    ],
)
def test_a_job_that_never_starts_to_train_is_one_line_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, expected: str
) -> None:
    monkeypatch.setattr(trial, "START_SECONDS", 0.3)
    log = tmp_path / "log"
    log.write_text("building\nno such pin\n")
    with subprocess.Popen(["sh", "-c", command]) as process:
        try:
            with pytest.raises(UsageError) as caught:
                trial._wait_for("step 1", log, process)
        finally:
            process.kill()
    assert str(caught.value) == expected
