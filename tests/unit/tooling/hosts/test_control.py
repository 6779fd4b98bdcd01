"""`./inv logs` and `stop` for jobs on hosts."""

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from invoke.exceptions import Exit

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from cpu_train_stack.placement.hostfile import HostfileEntry
from tests.unit.tooling.closed_pipe import ClosedPipe
from tests.unit.tooling.hosts.host_jobs import job
from tooling.engine.ssh import Done, Remote, RemoteError
from tooling.hosts import control, launch, record
from tooling.hosts.record import Record


@dataclass
class Hosts:
    """The hosts of a job, whose containers have printed two lines and run. The sets are names of hosts."""

    down: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)  # their connections, after the output so far
    hang: set[str] = field(default_factory=set)  # their Docker
    keep: set[str] = field(default_factory=set)  # their containers cannot be removed
    removed: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)

    def connect(self, hosts: Sequence[HostfileEntry], _stack: ExitStack) -> tuple[list[Remote], list[str]]:
        names = [host.name for host in hosts]
        remotes: list[Remote] = [_Host(name, self) for name in names if name not in self.down]
        return remotes, [f"{name}: cannot be reached" for name in names if name in self.down]


class _Host(Remote):
    def __init__(self, name: str, hosts: Hosts) -> None:
        self.name, self._hosts = name, hosts

    def stream(self, command: str, lost: Callable[[], object] | None = None) -> Iterator[bytes]:
        yield b"1\n2\n"
        if lost and self.name in self._hosts.broken:
            lost()
            return
        if "--follow" in command and self.name != "alpha":
            threading.Event().wait()

    def run(self, command: str, stdin: bytes = b"", limit: float = 60.0) -> Done:
        if self.name in self._hosts.hang:
            raise RemoteError("docker inspect did not end within 60 s")
        if command.startswith("docker inspect"):
            if self.name in self._hosts.removed:
                return Done(1, "", "Error: No such object")
            status, code = self._hosts.states.get(self.name, "running 0").split()
            state = {"Status": status, "ExitCode": int(code), "OOMKilled": False, "FinishedAt": ""}
            return Done(0, json.dumps(state), "")
        if self.name in self._hosts.keep:
            return Done(1, "", "device busy")
        if self.name not in self._hosts.removed:
            self._hosts.removed.append(self.name)
        return Done(0, "", "")


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made = Hosts()
    monkeypatch.setattr(record, "JOBS", tmp_path / "jobs")
    monkeypatch.setattr(control, "connect", made.connect)
    return made


def detached(launcher: str = "torchrun") -> Record:
    running = record.of(job(launcher=launcher), detached=True)
    record.write(running)
    return running


def both_lines(*names: str) -> list[str]:
    return [f"{name} | {line}" for name in names for line in (1, 2)]


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
            log.write(b"alpha | half a ")
            time.sleep(3 * control._POLL_SECONDS)
            assert capfdbinary.readouterr().out == b""
            log.write(b"line\n")
            log.write(b"3")
        reader.join()
    assert printed + capfdbinary.readouterr().out == b"1\n2\nalpha | half a line\n3"


def test_a_line_that_is_still_written_is_not_printed_before_the_jobs_end(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    watched = record.of(job(), detached=False)
    record.write(watched)
    record.log_of("one").write_bytes(b"alpha | 1\nalpha | ha")
    with locked(record.lock_of("one"), waiting=None):
        control.logs(watched, follow=False)
    assert capsysbinary.readouterr().out == b"alpha | 1\n"
    control.logs(watched, follow=False)
    assert capsysbinary.readouterr().out == b"alpha | 1\nalpha | ha"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("follow", [False, True], ids=["so far", "follow"])
def test_logs_of_a_detached_job_ends_when_nobody_reads_it(monkeypatch: pytest.MonkeyPatch, follow: bool) -> None:
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=ClosedPipe()))
    with pytest.raises(BrokenPipeError):
        control.logs(detached(), follow)


def test_logs_prints_the_output_of_the_hosts_that_answer(hosts: Hosts, capfd: pytest.CaptureFixture[str]) -> None:
    hosts.down = {"alpha"}
    with pytest.raises(Exit) as caught:
        control.logs(detached(), follow=False)
    out, err = capfd.readouterr()
    assert (caught.value.code, err) == (contract.USAGE_EXIT_CODE, "alpha: cannot be reached\n")
    assert sorted(out.splitlines()) == both_lines("beta", "gamma")


@pytest.mark.timeout(20)
def test_logs_reports_a_connection_that_breaks(hosts: Hosts, capfd: pytest.CaptureFixture[str]) -> None:
    hosts.broken = {"beta", "gamma"}
    with pytest.raises(Exit) as caught:
        control.logs(detached(), follow=True)
    out, err = capfd.readouterr()
    assert caught.value.code == contract.USAGE_EXIT_CODE
    assert sorted(out.splitlines()) == both_lines("alpha", "beta", "gamma")
    again = "the connection has ended: run ./inv logs --name one again"
    assert sorted(err.splitlines()) == [f"beta: {again}", f"gamma: {again}"]


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ("down", "beta: cannot be reached"),
        ("hang", "beta: Docker does not answer: check it on the host"),
        ("keep", "beta: its container cannot be removed: device busy"),
    ],
)
def test_stop_ends_a_job_on_the_other_hosts_and_completes_when_repeated(
    hosts: Hosts, problem: str, line: str
) -> None:
    running = detached()
    setattr(hosts, problem, {"beta"})
    with pytest.raises(UsageError) as caught:
        control.stop(running)
    first, last = str(caught.value).splitlines()
    assert first == line
    assert last.startswith("job one may still be running there: run ./inv stop --name one again")
    assert sorted(hosts.removed) == ["alpha", "gamma"]
    assert record.read("one") == running
    assert not record.log_of("one").exists()  # ./inv logs would print this file instead of new output
    setattr(hosts, problem, set())
    control.stop(running)
    assert sorted(hosts.removed) == ["alpha", "beta", "gamma"]
    assert record.log_of("one").read_text().splitlines() == both_lines("alpha", "beta", "gamma")
    assert {file.name for file in record.folder_of("one").iterdir()} == {"job.json", "log.txt"}
    ended = record.read("one")
    assert ended
    assert ended.ended


@pytest.mark.parametrize("problem", ["", "down", "keep"], ids=["well", "first host down", "first container stays"])
def test_the_container_of_mpirun_is_removed_first_and_the_others_in_any_case(hosts: Hosts, problem: str) -> None:
    running = detached("mpirun")
    if not problem:
        control.stop(running)
        assert (hosts.removed[0], len(hosts.removed)) == ("alpha", 3)
        return
    setattr(hosts, problem, {"alpha"})
    with pytest.raises(UsageError, match=r"^alpha: "):
        control.stop(running)
    assert sorted(hosts.removed) == ["beta", "gamma"]


@pytest.mark.parametrize(
    ("launcher", "states", "code"),
    [
        ("torchrun", ("running 0", "running 0", "running 0"), None),
        ("torchrun", ("exited 0", "exited 0", "running 0"), None),
        ("torchrun", ("created 0", "created 0", "created 0"), None),
        ("torchrun", ("exited 0", "exited 0", "exited 0"), 0),
        ("torchrun", ("exited 0", "exited 7", "exited 1"), 7),
        ("mpirun", ("exited 0", "running 0", "running 0"), 0),
        ("mpirun", ("running 0", "running 0", "running 0"), None),
    ],
    ids=["runs", "one runs", "never started", "ended", "failed", "mpirun ended", "mpirun runs"],
)
def test_stop_records_how_a_detached_job_has_ended(
    hosts: Hosts, capfd: pytest.CaptureFixture[str], launcher: str, states: Sequence[str], code: int | None
) -> None:
    hosts.states = dict(zip(("alpha", "beta", "gamma"), states, strict=True))
    control.stop(detached(launcher))
    ended = record.read("one")
    assert ended
    if code is None:
        assert (ended.exit_code, capfd.readouterr().err) == (143, "job one is stopped\n")
    else:
        line = f"job one had ended with exit code {code}: its containers are removed\n"
        assert (ended.exit_code, capfd.readouterr().err) == (code, line)


def test_a_second_job_of_the_name_is_refused_while_containers_are_left() -> None:
    detached()
    with pytest.raises(UsageError, match=r"^job one is running, or has ended .*, or run \./inv stop --name one$"):
        launch.launch(job(), detach=False, dry_run=False)


def test_an_end_that_cannot_be_recorded_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(_record: Record) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record, "write", write)
    launch._record_end(job(), 7)
    assert "No space left on device: the end of the job could not be recorded" in capsys.readouterr().err
