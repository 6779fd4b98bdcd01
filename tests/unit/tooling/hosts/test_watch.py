"""`./inv watch` for jobs on hosts."""

import os
import subprocess
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.hosts.host_jobs import job
from tooling.hosts import commands, control, record


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


@dataclass
class Host:
    """A host whose command ends with `code`."""

    code: int
    name: str = "alpha"
    started: list[tuple[str, bool]] = field(default_factory=list)

    def show(self, command: str, terminal: bool) -> int:
        self.started.append((command, terminal))
        return self.code


def connected(host: Host, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    def connect(hosts: Any, _stack: ExitStack) -> tuple[list[Any], list[str]]:
        assert [one.name for one in hosts] == ["alpha"]
        return [host], []

    monkeypatch.setattr(control, "connect", connect)
    monkeypatch.setattr(os, "isatty", lambda _number: terminal)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_first_host_is_asked_and_its_exit_code_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    mine, host = record.of(job(), detached=True), Host(2)
    connected(host, monkeypatch, terminal)
    with pytest.raises(Exit) as raised:
        control.watch(mine)
    assert raised.value.code == 2
    assert host.started == [(commands.watch(mine.containers[0], terminal), terminal)]


def test_a_job_that_has_ended_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "JOBS", tmp_path)
    mine = record.of(job(), detached=True)
    fix = r", expected a running job: \./inv logs --name one shows its output$"
    with pytest.raises(UsageError, match=f"^job one has ended with exit code 0{fix}"):
        control.watch(replace(mine, exit_code=0))
    with pytest.raises(UsageError, match=f"^job one has ended{fix}"):
        control.watch(replace(mine, detached=False))  # its ./inv launch was killed


@pytest.mark.parametrize("code", [255, 137], ids=["the connection broke", "the container ended"])
def test_a_broken_view_leaves_a_usable_terminal(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], code: int
) -> None:
    connected(Host(code), monkeypatch, terminal=True)
    with pytest.raises(UsageError, match="alpha: the connection has ended: run") if code == 255 else nullcontext():
        control.watch(record.of(job(), detached=True))
    assert capfdbinary.readouterr().out.startswith(b"\x1b[?1049l\x1b[?25h")
