"""`./inv logs` and `stop` for jobs on hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tooling.hosts.host_jobs import job
from tooling.hosts import control, record


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "JOBS", tmp_path / "jobs")


def test_the_log_of_an_ended_job_is_printed_byte_by_byte(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    ended = record.of(job(), detached=False)
    record.write(ended)
    text = "alpha | 50% █\r100% ██\n".encode() + b"\xff\n"
    record.log_of("one").write_bytes(text)
    control.logs(ended, follow=False)
    assert capsysbinary.readouterr().out == text
