"""Containers of one command, with a client that is a script."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT
from tooling.engine import docker
from tooling.engine.docker import LocalImage

# Containers are files: `run` makes one and waits, `create` refuses an image without a command.
CLIENT = """#!/bin/sh
cd {folder}
case $1 in
  run) touch "$4"; [ "$8" = --wait ] && exec sleep 60;;
  rm) rm -f "$3";;
  container)
    case $2 in
      create) [ $# = 7 ] && [ "$3" = --name ] && touch "$4";;
    esac;;
esac
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "containers").mkdir()
    program = tmp_path / "client"
    program.write_text(CLIENT.format(folder=tmp_path / "containers"))
    program.chmod(0o755)
    monkeypatch.setattr(docker, "CACHE", tmp_path)
    monkeypatch.setattr(docker, "_ONCE", tmp_path / "once")
    return program


def test_an_engine_that_does_not_remove_a_container_does_not_block_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "_ONCE", tmp_path / "once")
    client = tmp_path / "client"
    client.write_text('#!/bin/sh\n[ "$1" = rm ] && exec sleep 30\nexit 3\n')
    client.chmod(0o755)
    monkeypatch.setattr(docker, "_REMOVE_SECONDS", 0.1)
    started = time.monotonic()
    assert docker.run("image", ["true"], client=[str(client)]).returncode == 3
    assert time.monotonic() - started < 20


@pytest.mark.timeout(60)
def test_the_container_of_a_command_that_was_killed_is_removed_by_the_next_one(client: Path) -> None:
    folder = client.parent / "containers"
    begin = (
        f"import pathlib; from tooling.engine import docker; docker._ONCE = pathlib.Path({str(docker._ONCE)!r})"
    )
    code = f"{begin}; docker.run('x', [], ['--wait'], client=[{str(client)!r}])"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not [*folder.iterdir()]:
            assert process.poll() is None
            time.sleep(0.05)
        docker.run("x", [], client=[str(client)])
        assert len([*folder.iterdir()]) == 1, "the container of a command that runs was removed"
        process.send_signal(signal.SIGKILL)
    (docker._ONCE / f"{docker.PREFIX}gone").write_text('["/no/such/client"]')
    docker.run("x", [], client=[str(client)])
    assert [*folder.iterdir(), *docker._ONCE.iterdir()] == []


@pytest.mark.parametrize(
    ("message", "stays"), [("Cannot connect to the engine", True), ("No such container: x", False)]
)
def test_a_container_that_cannot_be_removed_now_is_removed_later(client: Path, message: str, stays: bool) -> None:
    broken = client.with_name("broken")
    broken.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    broken.chmod(0o755)
    docker._ONCE.mkdir()
    left = docker._ONCE / f"{docker.PREFIX}left"
    left.write_text(json.dumps([str(broken)]))
    docker.run("x", [], client=[str(client)])
    assert left.exists() == stays


@pytest.mark.parametrize("text", ["garbage", "null", "3", "[" * 200_000, "[null]"])
def test_a_damaged_record_of_a_container_is_deleted(client: Path, text: str) -> None:
    docker._ONCE.mkdir()
    left = docker._ONCE / f"{docker.PREFIX}left"
    left.write_text(text)
    docker.run("x", [], client=[str(client)])
    assert not left.exists()


def test_the_exported_container_has_a_command_and_is_removed(client: Path) -> None:
    """An image need not have a command, and `create` needs one."""
    folder = client.parent / "containers"
    with docker.created(LocalImage("sha256:" + "1" * 64, 1, {}, (), {}), [str(client)]) as name:
        assert [one.name for one in folder.iterdir()] == [name]
    assert [*folder.iterdir()] == []
