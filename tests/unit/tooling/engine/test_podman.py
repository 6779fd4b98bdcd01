"""Which podman can run a cluster, and when podman is the engine."""

from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.engine.findings import BOOKWORM, COMPLETE, NOTHING
from tooling.engine import api, podman
from tooling.engine.find import EngineHost, Findings


def facts(**changes: Any) -> dict[str, Any]:
    """Parts of `podman info`, from podman 4.3 on Debian 12."""
    ids = [{"container_id": 0, "host_id": 1001, "size": 1}, {"container_id": 1, "host_id": 100000, "size": 65536}]
    host = {
        "idMappings": {"uidmap": ids, "gidmap": ids},
        "networkBackend": "netavark",
        "security": {"rootless": True},
    }
    return {"host": host | changes, "store": {"graphDriverName": "overlay"}}


def test_a_rootless_podman_with_ids_names_and_overlay_is_used() -> None:
    assert podman.refusal(facts()) is None
    assert podman.slow_storage(facts()) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"idMappings": {"uidmap": [{"size": 1}], "gidmap": [{"size": 1}]}},
            "podman has 1 user and group ids for",
        ),
        ({"networkBackend": "cni"}, "network backend is cni"),
    ],
    ids=["no subuid range", "no names"],
)
def test_another_podman_is_refused_with_one_line(changes: dict[str, Any], expected: str) -> None:
    refusal = podman.refusal(facts(**changes)) or ""
    assert expected in refusal
    assert "\n" not in refusal


def test_root_needs_no_subordinate_ids() -> None:
    assert podman.refusal(facts(idMappings={"uidmap": None, "gidmap": None}, security={"rootless": False})) is None


def test_copies_of_the_image_are_warned_about() -> None:
    assert "vfs" in (podman.slow_storage({**facts(), "store": {"graphDriverName": "vfs"}}) or "")


USER = EngineHost("fedora", 42, "Fedora Linux 42", root=False, systemd=True)


@pytest.mark.parametrize(
    ("findings", "host", "installed", "alone"),
    [
        (NOTHING, USER, True, True),
        (Findings(client="podman version 4.3.1"), USER, True, True),
        (NOTHING, USER, False, False),
        (COMPLETE, USER, True, False),
        (Findings(chosen_by="DOCKER_HOST"), USER, True, False),
        (NOTHING, BOOKWORM, True, False),
    ],
    ids=["podman", "podman as docker", "neither", "both", "a chosen engine", "root may install Docker"],
)
def test_podman_is_the_default_where_docker_is_missing_and_may_not_be_installed(
    findings: Findings, host: EngineHost, installed: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(api, "find", lambda: findings)
    monkeypatch.setattr(api, "read_host", lambda: host)
    monkeypatch.setattr(api, "ensure", lambda: api.Engine("unix:///docker", 2))
    monkeypatch.setattr(podman, "installed", lambda: installed)
    monkeypatch.setattr(podman, "ensure", lambda: "unix:///podman")
    monkeypatch.setattr(podman, "answering", lambda _endpoint: {"NCPU": 2})
    assert api.for_cluster().name == (api.PODMAN if alone else api.DOCKER)
    assert api.for_cluster(api.DOCKER).name == api.DOCKER


def test_an_engine_that_is_not_installed_or_not_known_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(podman, "installed", lambda: False)
    monkeypatch.setattr(api, "read_host", lambda: BOOKWORM)
    with pytest.raises(UsageError, match="podman is not on PATH; to install: sudo apt-get install podman"):
        api.for_cluster(api.PODMAN)
    with pytest.raises(UsageError, match="--engine is 'lxc', expected docker or podman"):
        api.check("lxc")


def test_the_client_reaches_the_engine_that_the_api_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert api.Engine("unix:///var/run/docker.sock", 2).client == ("docker",)
    engine = api.Engine("tcp://another:2375", 2, api.PODMAN)
    monkeypatch.setattr(podman, "installed", lambda: True)
    assert engine.client == ("podman", "--remote", "--url=tcp://another:2375")
    monkeypatch.setattr(podman, "installed", lambda: False)
    with pytest.raises(UsageError, match="the engine at tcp://another:2375 is podman, and podman is not on PATH"):
        _ = engine.client
