"""The facts that are found: the engine, its client, and the host."""

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tooling.engine.findings import BOOKWORM, FACTS
from tooling.engine.decide import decide, lacking
from tooling.engine.find import (
    find,
    host_from,
    parse_buildkit,
    parse_engine,
    parse_plugins,
    read_host,
    version_tuple,
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("26.1.5+dfsg1", (26, 1, 5)),
        ("v2.26.1-4", (2, 26, 1)),
        ("0.13.1+ds1", (0, 13, 1)),
        ("v0.0.0+unknown", (0, 0, 0)),
        ("Docker version 20.10.24+dfsg1, build 297e128", (20, 10, 24)),
        ("unknown", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_a_version_is_read_without_a_distributions_suffix(text: str | None, numbers: tuple[int, ...]) -> None:
    assert version_tuple(text) == numbers


def test_an_engines_info_becomes_facts() -> None:
    info = {
        "ServerVersion": "26.1.5+dfsg1",
        "DockerRootDir": "/var/lib/docker",
        "CgroupVersion": "2",
        "Driver": "overlay2",
        "NCPU": 2,
        "MemTotal": 8_000_000_000,
    }
    assert parse_engine(info) == FACTS


@pytest.mark.parametrize("info", [{}, {"ServerVersion": "", "NCPU": 0}], ids=["nothing", "the client's zeros"])
def test_no_answer_is_no_engine(info: dict[str, Any]) -> None:
    assert parse_engine(info) is None


def test_plugins_are_found_and_broken_ones_are_not() -> None:
    info = {
        "ClientInfo": {
            "Plugins": [
                {"Name": "buildx", "Version": "0.13.1+ds1"},
                {"Name": "compose", "Version": "2.26.1-4", "Err": "plugin candidate is not executable"},
            ]
        }
    }
    assert parse_plugins(info) == {"buildx": "0.13.1+ds1"}
    assert parse_plugins({"ClientInfo": {"Plugins": None}}) == {}


@pytest.mark.parametrize(
    ("text", "buildkit"),
    [
        ("Name:          default\nNodes:\nBuildKit version: v0.0.0+unknown\nLabels:\n", "v0.0.0+unknown"),
        ("Nodes:\nBuildkit:  v0.12.5\n", "v0.12.5"),
        ("Labels:\n org.mobyproject.buildkit.worker.moby.host-gateway-ip: 172.17.0.1\n", None),
    ],
    ids=["Debian's", "an older buildx's", "none"],
)
def test_buildkits_version_is_read_from_buildx(text: str, buildkit: str | None) -> None:
    assert parse_buildkit(text) == buildkit


def test_an_address_that_the_user_chose_and_that_does_not_respond_is_reported() -> None:
    found = find({"PATH": os.environ["PATH"], "DOCKER_HOST": "tcp://127.0.0.1:9"})
    assert (found.engine, found.chosen_by, found.endpoint) == (None, "DOCKER_HOST", "tcp://127.0.0.1:9")
    assert found.problem


_CLIENT = """#!/bin/sh
case "$*" in
"context show") echo {context} ;;
"compose version") echo "Docker Compose version 2.26.1-4" ;;
"buildx version") echo "github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3" ;;
--version) echo "Docker version 28.2.2, build e6534b4" ;;
*) echo "Failed to initialize" >&2; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("context", "chosen_by"),
    [("gone", "the context 'gone'"), ("default", None)],
    ids=["no such context", "no answer"],
)
def test_without_the_clients_information_nothing_is_missing(
    tmp_path: Path, context: str, chosen_by: str | None
) -> None:
    client = tmp_path / "docker"
    client.write_text(_CLIENT.format(context=context))
    client.chmod(0o755)
    found = find({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (found.engine, found.chosen_by, found.problem) == (None, chosen_by, "Failed to initialize")
    assert not set(lacking(found)) & {"the docker client", "compose v2", "buildx >= 0.8"}
    refusal = decide(found, BOOKWORM).refusal
    assert (refusal or "").startswith("the Docker Engine at gone, chosen by the context 'gone'") == bool(chosen_by)


def test_without_a_client_the_socket_is_queried() -> None:
    found = find({"PATH": "/nonexistent", "DOCKER_HOST": "unix:///nonexistent.sock"})
    assert (found.client, found.engine) == (None, None)
    assert found.problem
    assert "\n" not in found.problem


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, 12),
        ({"ID": "ubuntu", "VERSION_ID": "24.04"}, 24),
        ({"ID": "debian"}, None),
    ],
    ids=["Debian 12", "Ubuntu 24.04", "Debian testing"],
)
def test_a_hosts_version_is_its_major_number(release: dict[str, str], version: int | None, tmp_path: Path) -> None:
    host = host_from(release, root=False, root_directory=tmp_path)
    assert (host.version, host.systemd, host.docker_ce, host.ca_certificates) == (version, False, False, False)


def test_the_facts_of_a_host_are_read_from_its_root_directory(tmp_path: Path) -> None:
    for directory in ("run/systemd/system", "var/lib/dpkg/info", "etc/ssl/certs"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/info/docker-ce.list").touch()
    (tmp_path / "etc/ssl/certs/ca-certificates.crt").touch()
    host = host_from({"ID": "debian", "VERSION_ID": "12"}, root=False, root_directory=tmp_path)
    assert (host.os_id, host.version, host.systemd, host.docker_ce, host.ca_certificates) == (
        *("debian", 12),
        *(True, True, True),
    )


def test_without_an_os_release_file_the_kernel_names_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise OSError

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    assert (read_host().os_id, read_host().version) == (os.uname().sysname.lower(), None)
