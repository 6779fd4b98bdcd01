"""A second Ctrl-C while a command removes what it has started."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.signals import default_handlers, interrupt
from tooling.cluster import run, wait
from tooling.engine import docker
from tooling.engine.failures import EngineLostError


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of ./inv, whoever started the tests."""
    with default_handlers():
        yield


@pytest.mark.parametrize(
    ("end", "said"),
    [(interrupt, "removing cluster test; its output and log stay\n"), (lambda: None, "")],
    ids=["Ctrl-C twice", "Ctrl-C at the end"],
)
def test_a_cluster_is_removed_completely(
    end: Callable[[], None], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    removed = []

    def remove(name: str, _endpoint: str) -> None:
        interrupt()
        removed.append(name)

    monkeypatch.setattr(run, "remove", remove)
    with pytest.raises(KeyboardInterrupt), run._torn_down("test", "unix:///docker"):
        end()
    assert (removed, capsys.readouterr().err) == (["test"], said)


@pytest.mark.parametrize("end", [interrupt, lambda: None], ids=["during the removal", "during the wait"])
def test_a_cluster_on_a_lost_engine_is_named(
    end: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def remove(_name: str, _endpoint: str) -> None:
        end()
        raise EngineLostError("the engine does not answer")

    monkeypatch.setattr(run, "remove", remove)
    monkeypatch.setattr(wait, "until_engine_is_back", lambda _name, _endpoint: interrupt())
    with pytest.raises(KeyboardInterrupt), run._torn_down("test", "unix:///docker"):
        end()
    assert "run ./inv down --name test later to remove what is left" in capsys.readouterr().err


# The terminal sends Ctrl-C to every program of its session.
CLIENT = """#!/bin/sh
case $1 in
rm)
    kill -INT $PPID
    sleep 0.2
    [ "$(cut -d ' ' -f 6 /proc/self/stat)" = $$ ] && touch "$(dirname "$0")/removed" ;;
run) kill -INT $PPID; exec sleep 60 ;;
esac
"""


def test_a_container_is_removed_by_a_client_that_gets_no_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "_ONCE", tmp_path / "once")
    client = tmp_path / "client"
    client.write_text(CLIENT)
    client.chmod(0o755)
    with pytest.raises(KeyboardInterrupt):
        docker.run("image", ["true"], client=(str(client),))
    assert (tmp_path / "removed").exists()
    assert [*(tmp_path / "once").iterdir()] == []


def test_an_exported_container_is_removed_too(tmp_path: Path) -> None:
    client = tmp_path / "client"
    client.write_text(CLIENT)
    client.chmod(0o755)
    with (
        pytest.raises(KeyboardInterrupt),
        docker.created(docker.LocalImage("1", 1, {}, (), {}), client=(str(client),)),
    ):
        interrupt()
    assert (tmp_path / "removed").exists()
