"""`./inv logs` and `stop` for jobs on hosts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from entrypoints.launch.mpi.hostfile import Host
from tests.unit.tooling.closed_pipe import ClosedPipe
from tests.unit.tooling.hosts.host_jobs import job
from tooling.basis.files import locked
from tooling.hosts import control, record
from tooling.hosts.remote import Remote


class _Host(Remote):
    """A host whose container has printed two lines, and prints more later."""

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(self, command: str) -> Iterator[bytes]:
        yield b"1\n2\n"
        if "--follow" in command and self.name != "alpha":
            threading.Event().wait()


def _connected(hosts: Sequence[Host], _stack: ExitStack) -> tuple[list[Remote], list[str]]:
    return [_Host(host.name) for host in hosts], []


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


@pytest.mark.timeout(20)
def test_follow_prints_the_log_of_a_watched_job_until_its_end(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    watched = record.of(job(), detached=False)
    record.write(watched)
    reader = threading.Thread(target=control.logs, args=(watched, True), daemon=True)
    printed = b""
    with record.log_of("one").open("wb", buffering=0) as log:
        with locked(record.lock_of("one"), waiting=None):
            log.write(b"1\n")
            reader.start()
            while b"1\n" not in printed:
                printed += capfdbinary.readouterr().out
            log.write(b"2\n")
            while b"2\n" not in printed:
                printed += capfdbinary.readouterr().out
            assert reader.is_alive()
            log.write(b"3\n")
        reader.join()
    assert printed + capfdbinary.readouterr().out == b"1\n2\n3\n"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("follow", [False, True], ids=["so far", "follow"])
def test_logs_of_a_detached_job_ends_when_nobody_reads_it(monkeypatch: pytest.MonkeyPatch, follow: bool) -> None:
    monkeypatch.setattr(control, "connect", _connected)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=ClosedPipe()))
    with pytest.raises(BrokenPipeError):
        control.logs(record.of(job(), detached=True), follow)
