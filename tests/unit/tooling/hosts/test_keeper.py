"""The session that keeps a container alive, with a fake ssh."""

import queue
import subprocess
from pathlib import Path

import pytest

from tests.unit.tooling.engine.fake_ssh import FakeSsh
from tooling.engine.ssh import Remote, RemoteError
from tooling.hosts import commands, keeper
from tooling.hosts.keeper import Keeper

pytestmark = pytest.mark.timeout(30)
ANSWERS = "echo; while read -r _; do echo; done; "


def kept(command: str, lost: queue.Queue[str], monkeypatch: pytest.MonkeyPatch) -> Keeper:
    monkeypatch.setattr(commands, "keep", lambda _container: command)
    monkeypatch.setattr(keeper, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(keeper, "LOST_SECONDS", 0.5)
    remote = Remote("there")
    remote.open()
    return Keeper(remote, "box", lost.put)


@pytest.mark.parametrize(("end", "removed"), [("exit 0", True), ("exit 1", False)])
def test_at_the_end_the_host_says_whether_it_has_removed_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, removed: bool
) -> None:
    FakeSsh(tmp_path, monkeypatch)
    lost: queue.Queue[str] = queue.Queue()
    one = kept(ANSWERS + end, lost, monkeypatch)
    one.end()
    assert one.removed() == removed
    assert lost.empty()


@pytest.mark.parametrize(
    ("command", "why"),
    [("echo; read -r _; echo; exit 255", "the connection broke"), ("echo; sleep 20", "no answer for 0 s")],
    ids=["broken", "silent"],
)
def test_a_host_that_stops_answering_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, why: str
) -> None:
    FakeSsh(tmp_path, monkeypatch)
    lost: queue.Queue[str] = queue.Queue()
    one = kept(command, lost, monkeypatch)
    assert lost.get(timeout=20) == why
    assert not one.removed()


def test_a_host_without_bash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSsh(tmp_path, monkeypatch)
    with pytest.raises(RemoteError, match=r"^bash is required on the host: sh: bash: not found$"):
        kept("echo 'sh: bash: not found' >&2; exit 127", queue.Queue(), monkeypatch)


@pytest.mark.parametrize("rest", ["cat /dev/zero >&2", "sleep 40"], ids=["endless", "silent"])
def test_a_message_of_a_host_that_does_not_end_is_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    FakeSsh(tmp_path, monkeypatch)
    with pytest.raises(RemoteError, match=r"^bash is required on the host: no bash"):
        kept(f"exec >&-; echo 'no bash' >&2; {rest}", queue.Queue(), monkeypatch)


def test_a_real_session_removes_the_container_when_its_input_ends(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$1 $2" >>{tmp_path}/called\n')
    docker.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", f"PATH={tmp_path}:$PATH; {commands.keep('box')}"],
        input=b"\n", capture_output=True, check=True, timeout=20,
    )  # fmt: skip
    assert done.stdout == b"\n\n"
    assert (tmp_path / "called").read_text().splitlines()[:2] == ["stop -t", "rm --force"]
