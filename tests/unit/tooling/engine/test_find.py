"""What is found of a Docker Engine and its client."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.unit.tooling.engine.findings import FACTS
from tooling.engine.find import find, parse_buildkit, parse_engine, parse_plugins, version_tuple


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
def test_a_version_is_read_whatever_a_distribution_adds_to_it(text: str | None, numbers: tuple[int, ...]) -> None:
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
    assert parse_engine(info, "1.45") == FACTS


@pytest.mark.parametrize("info", [{}, {"ServerVersion": "", "NCPU": 0}], ids=["nothing", "the client's zeros"])
def test_no_answer_is_no_engine(info: dict[str, Any]) -> None:
    assert parse_engine(info, "") is None


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


def test_a_dead_address_chosen_by_the_user_is_found_as_such_and_nothing_hangs() -> None:
    found = find({"PATH": os.environ["PATH"], "DOCKER_HOST": "tcp://127.0.0.1:9"})
    assert (found.engine, found.chosen_by, found.endpoint) == (None, "DOCKER_HOST", "tcp://127.0.0.1:9")
    assert found.problem


def test_without_a_client_the_socket_itself_is_asked() -> None:
    found = find({"PATH": "/nonexistent", "DOCKER_HOST": "unix:///nonexistent.sock"})
    assert (found.client, found.engine) == (None, None)
    assert found.problem
    assert "\n" not in found.problem
