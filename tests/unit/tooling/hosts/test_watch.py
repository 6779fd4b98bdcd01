"""`./inv watch` for jobs on hosts."""

import io
import os
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

from tests.unit.tooling.hosts.host_jobs import job
from tooling.basis.errors import UsageError
from tooling.hosts import commands, record, watch


class Channel:
    """Answers `recv` with the items of `script`: bytes, or an exception to raise."""

    def __init__(self, *script: Any, code: int = 0) -> None:
        self._script, self._code = list(script), code
        self.sent = b""
        self.sizes: list[tuple[int, int]] = []

    def settimeout(self, _seconds: float) -> None: ...

    def recv(self, _size: int) -> bytes:
        item = self._script.pop(0) if self._script else b""
        if isinstance(item, bytes):
            return item
        raise item

    def sendall(self, keys: bytes) -> None:
        self.sent += keys

    def resize_pty(self, *size: int) -> None:
        self.sizes.append((size[0], size[1]))

    def recv_exit_status(self) -> int:
        return self._code


def test_the_terminal_gets_ctrl_c_and_the_size() -> None:
    channel, target = Channel(b"one ", TimeoutError(), KeyboardInterrupt(), b"two"), io.BytesIO()
    sizes = [(80, 24), (80, 24), (100, 30), (100, 30), (100, 30)]
    code = watch.copy(channel, target, lambda: sizes.pop(0) if len(sizes) > 1 else sizes[0])
    assert (code, target.getvalue(), channel.sent, channel.sizes) == (130, b"one two", b"\x03", [(100, 30)])


def test_a_broken_connection_leaves_a_usable_terminal() -> None:
    for code in (-1, 137):  # 137: the container ended
        target = io.BytesIO()
        assert watch.copy(Channel(b"view", code=code), target, lambda: (80, 24)) == code
        assert target.getvalue().startswith(b"view\x1b[?1049l\x1b[?25h")
    twice = Channel(KeyboardInterrupt(), KeyboardInterrupt())
    assert watch.copy(twice, io.BytesIO(), lambda: (80, 24)) == 130


def test_without_a_terminal_ctrl_c_ends_the_watch() -> None:
    with pytest.raises(KeyboardInterrupt):
        watch.copy(Channel(KeyboardInterrupt()), io.BytesIO(), None)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_command_runs_in_the_container_and_ignores_earlier_jobs(terminal: bool, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nif [ $1 = inspect ]; then echo 2026-11-23T14:00:00.5Z; else echo "$@"; fi\n')
    docker.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", commands.watch("box", terminal)], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    options = "--interactive --tty " if terminal else ""
    assert done.stdout == f"exec {options}box entrypoint watch --since 1795442400\n"


class Host:
    """A connection to a host."""

    name = "alpha"

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.started: list[str] = []

    def session(self, command: str, terminal: tuple[int, int] | None) -> Channel:
        assert terminal is None
        self.started.append(command)
        return self._channel


def test_the_first_host_is_asked_and_its_exit_code_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    mine = record.of(job(), detached=True)
    host = Host(Channel(b"a line\n", code=2))

    def connect(hosts: Any, _stack: ExitStack) -> tuple[list[Any], list[str]]:
        assert [one.name for one in hosts] == ["alpha"]
        return [host], []

    monkeypatch.setattr(watch, "connect", connect)
    with pytest.raises(Exit) as raised:
        watch.watch(mine)
    assert raised.value.code == 2
    assert capfdbinary.readouterr().out == b"a line\n"
    assert host.started == [commands.watch(mine.containers[0], False)]


def test_a_job_that_has_ended_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "JOBS", tmp_path)
    mine = record.of(job(), detached=True)
    fix = r", expected a running job: \./inv logs --name one shows its output$"
    with pytest.raises(UsageError, match=f"^job one has ended with exit code 0{fix}"):
        watch.watch(replace(mine, exit_code=0))
    with pytest.raises(UsageError, match=f"^job one has ended{fix}"):
        watch.watch(replace(mine, detached=False))  # its ./inv launch was killed


def test_a_broken_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "connect", lambda _hosts, _stack: ([Host(Channel(code=-1))], []))
    with pytest.raises(UsageError, match="alpha: the connection has ended: run"):
        watch.watch(record.of(job(), detached=True))
