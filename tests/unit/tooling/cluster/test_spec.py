"""The description of a container, as each interface takes it."""

import csv
import json
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tooling.basis import yaml
from tooling.cluster import containers, spec
from tooling.cluster.spec import ContainerSpec, Mount

# A value of each property that no other property has, as text that each interface must get.
VALUES: dict[str, tuple[Any, str]] = {
    "image": ("of-image", "of-image"),
    "hostname": ("of-hostname", "of-hostname"),
    "user": ("77:78", "77:78"),
    "group_add": (("7900",), "7900"),
    "userns_mode": ("keep-id", "keep-id"),
    "labels": ({"of-labels": "1"}, "of-labels"),
    "entrypoint": (("of-entrypoint",), "of-entrypoint"),
    "command": (("of-command",), "of-command"),
    "environment": ({"OF_ENVIRONMENT": "1"}, "OF_ENVIRONMENT"),
    "volumes": ((Mount(Path("/of-volumes"), "/data"),), "/of-volumes"),
    "tmpfs": (("/of-tmpfs:size=1m",), "/of-tmpfs"),
    "dns_search": (("of.dns",), "of.dns"),
    "memory": ("81m", "81m"),
    "cpus": (0.25, "25000"),
    "cpuset": ("0-82", "0-82"),
    "shm_size": (8300, "8300"),
    "pids_limit": (8400, "8400"),
    "cap_drop": (("OF_CAP_DROP",), "OF_CAP_DROP"),
    "security_opt": (("of-security",), "of-security"),
    "stop_grace_period": (8500, "8500"),
    "restart": ("on-failure", "on-failure"),
}
# Networks are the argument of the API's and the caller's own; only hosts have a network_mode.
NETWORKS = {"networks", "network_mode"}


def made(**values: Any) -> ContainerSpec:
    return ContainerSpec(**{"image": "image", **values})


def with_compose(one: ContainerSpec) -> str:
    return yaml.render([spec.service(one)])


def with_docker(one: ContainerSpec) -> str:
    return json.dumps([*spec.options(one), one.image, *one.words])


def with_the_api(one: ContainerSpec) -> str:
    """The arguments of docker-py's calls."""
    api = Mock()
    api.create_host_config.side_effect = lambda **options: options
    api.create_container.return_value = {"Id": "1"}
    api.create_endpoint_config.return_value = None
    containers._create(Mock(api=api), "project", "node-0", one, "network")
    return str(api.create_container.call_args)


def test_every_property_has_a_value_here() -> None:
    assert {field.name for field in fields(ContainerSpec)} == {*VALUES, *NETWORKS}


@pytest.mark.parametrize("render", [with_compose, with_docker, with_the_api])
@pytest.mark.parametrize("name", VALUES)
def test_every_interface_gets_every_property(render: Any, name: str) -> None:
    value, text = VALUES[name]
    assert text not in render(made())
    assert text in render(made(**{name: value}))


def test_memory_leaves_no_room_for_swap() -> None:
    assert {"--memory=2g", "--memory-swap=2g"} <= {*spec.options(made(memory="2g"))}


def test_a_variable_without_a_value_is_the_callers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "a secret")
    own = made(environment={"TOKEN": None})
    assert "--env=TOKEN" in spec.options(own)
    assert "secret" not in with_compose(own) + with_docker(own)
    assert "'TOKEN': 'a secret'" in with_the_api(own)


@pytest.mark.parametrize("path", ["/a b", "/a,readonly", '/a"b'])
def test_docker_reads_the_path_of_a_mount_as_it_is(path: str) -> None:
    (option,) = (one for one in spec.options(made(volumes=(Mount(Path(path), "/data"),))) if "--mount" in one)
    (parts,) = csv.reader([option.removeprefix("--mount=")])
    assert parts == ["type=bind", f"source={path}", "target=/data", "readonly"]
