"""What an engine does differently from Docker as root."""

import os
import pwd
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from docker.errors import APIError, NotFound

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine.facts import Core
from tooling.cluster import compose, containers, nodes, users
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.spec import ContainerSpec
from tooling.engine import docker, find
from tooling.engine.docker import LocalImage

DOCKER = {
    "CPUSet": True,
    "MemoryLimit": True,
    "PidsLimit": True,
    "CgroupVersion": "2",
    "SecurityOptions": ["seccomp"],
}
ROOTLESS_DOCKER = DOCKER | {"CPUSet": False, "SecurityOptions": ["name=seccomp", "name=rootless"]}
REMAPPED_DOCKER = DOCKER | {"SecurityOptions": ["name=seccomp", "name=userns"]}
PODMAN = DOCKER | {"BuildahVersion": "1.28.2", "Rootless": False}
ROOTLESS_PODMAN = PODMAN | {"Rootless": True}
IMAGE = LocalImage("sha256:1", 1, {}, (), {"Entrypoint": ["entrypoint"]})


def parts(spec: ClusterSpec) -> dict[str, ContainerSpec]:
    return compose.containers(spec, [Core((2,), (2,))], Path("/keys"))


def node(**options: Any) -> ContainerSpec:
    return parts(ClusterSpec("test", "image", nodes=1, command=("train",), **options))["node-0"]


@pytest.fixture(autouse=True)
def image(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(docker, "find_image_at", lambda *_: IMAGE)


def adapt(spec: ContainerSpec, info: dict[str, Any]) -> ContainerSpec:
    return containers.adapt(spec, info, "unix:///none")


@pytest.mark.parametrize("info", [DOCKER, PODMAN], ids=["Docker", "podman"])
def test_as_root_nothing_differs(info: dict[str, Any]) -> None:
    assert adapt(node(), info) == node()


def test_a_job_cannot_use_up_the_processes_of_the_machine() -> None:
    assert node().pids_limit == 65536
    for info in (ROOTLESS_PODMAN | {"CgroupVersion": "1"}, ROOTLESS_DOCKER | {"PidsLimit": False}):
        assert adapt(node(), info).pids_limit == 0


@pytest.mark.parametrize(
    ("info", "mode", "user"),
    [
        (ROOTLESS_PODMAN, "", "0:0"),
        (ROOTLESS_DOCKER, "", "0:0"),
        (REMAPPED_DOCKER, "host", node().user),
    ],
    ids=["rootless podman", "rootless Docker", "Docker with userns-remap"],
)
def test_the_output_belongs_to_the_caller(info: dict[str, Any], mode: str, user: str) -> None:
    adapted = adapt(node(), info)
    assert (adapted.userns_mode, adapted.user) == (mode, user)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (DOCKER, ("44", "2000")),
        (REMAPPED_DOCKER, ("44", "2000")),
        (ROOTLESS_DOCKER, ()),
        (ROOTLESS_PODMAN, ()),
    ],
    ids=["Docker", "Docker with userns-remap", "rootless Docker", "rootless podman"],
)
def test_the_nodes_have_the_callers_other_groups(
    info: dict[str, Any], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    monkeypatch.setattr(os, "getgroups", lambda: [2000, 100, 44, 27])
    monkeypatch.setattr(users, "name_of", {27: "sudo"}.get)
    assert adapt(node(), info).group_add == expected


@pytest.mark.parametrize(
    ("groups", "account", "user", "others"),
    [
        ([100, 27, 44], 100, (1001, 100), ["44"]),
        ([44, 100, 27], 100, (1001, 44), ["100"]),
        ([27, 100, 44], 100, (1001, 100), ["44"]),
        ([27, 44], 27, (1001, 44), []),
        ([27], None, (1001, 65534), []),
    ],
    ids=["own", "newgrp video", "newgrp docker", "docker is the account's", "no account"],
)
def test_a_group_like_root_is_not_the_containers_after_newgrp(
    groups: list[int],
    account: int | None,
    user: tuple[int, int],
    others: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setattr(os, "getegid", lambda: groups[0])
    monkeypatch.setattr(os, "getgroups", lambda: groups)
    accounts = {} if account is None else {1001: SimpleNamespace(pw_gid=account)}
    monkeypatch.setattr(pwd, "getpwuid", accounts.__getitem__)
    monkeypatch.setattr(users, "name_of", {27: "docker"}.get)
    assert (users.container_user(), users.container_groups()) == (user, others)


@pytest.mark.parametrize(
    ("accounts", "sudo", "expected"),
    [
        ((0,), {}, (1000, 1000)),
        ((0, 1000, 60578), {}, (60579, 60579)),
        ((0, 1000), {"SUDO_UID": "1000", "SUDO_GID": "100"}, (1000, 100)),
        ((0, 1000), {"SUDO_UID": "1000", "SUDO_GID": "27"}, (1000, 65534)),
        ((0, 1000), {"SUDO_UID": "0", "SUDO_GID": "0"}, (60578, 60578)),
    ],
    ids=["no account", "accounts", "sudo", "sudo after newgrp docker", "sudo of root"],
)
def test_no_user_has_the_uid_of_roots_containers(
    accounts: tuple[int, ...], sudo: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwuid", dict.fromkeys(accounts, "an account").__getitem__)
    monkeypatch.setattr(users, "name_of", {27: "docker"}.get)
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
        if name in sudo:
            monkeypatch.setenv(name, sudo[name])
    assert users.container_user() == expected


def test_a_node_may_read_the_hosts_folders_under_selinux() -> None:
    for launcher in compose.LAUNCHERS:
        assert "label=disable" in node(launcher=launcher).security_opt


@pytest.mark.parametrize("info", [ROOTLESS_PODMAN, ROOTLESS_DOCKER], ids=["podman", "Docker"])
def test_without_cpusets_the_affinity_gives_a_node_its_cores(info: dict[str, Any]) -> None:
    adapted = adapt(node(), info)
    assert (adapted.cpuset, adapted.entrypoint) == ("", ("taskset", "--cpu-list", "2", "entrypoint"))


def test_an_image_cannot_read_the_callers_variables_in_its_entrypoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose would replace them."""
    its = replace(IMAGE, configuration={"Entrypoint": ["sh", "-c", "echo ${SECRET}"]})
    monkeypatch.setattr(docker, "find_image_at", lambda *_: its)
    made = compose.document("p", {"node-0": adapt(node(), ROOTLESS_PODMAN)}, offline=False)
    words = made["services"]["node-0"]["entrypoint"]
    assert words == ["taskset", "--cpu-list", "2", "sh", "-c", "echo $${SECRET}"]


def test_a_memory_limit_that_the_engine_would_ignore_is_refused() -> None:
    assert adapt(node(memory="1g"), ROOTLESS_PODMAN).memory == "1g"
    for info in (ROOTLESS_PODMAN | {"CgroupVersion": "1"}, ROOTLESS_DOCKER | {"MemoryLimit": False}):
        with pytest.raises(UsageError, match="--memory 1g: this engine cannot limit memory"):
            adapt(node(memory="1g"), info)


def test_sshd_runs_as_the_caller_with_a_folder_for_its_keys() -> None:
    adapted = adapt(node(launcher="mpirun"), ROOTLESS_PODMAN)
    assert (adapted.userns_mode, adapted.user) == ("keep-id", node().user)
    assert adapted.tmpfs == ("/run/ssh:mode=1777,size=1m",)
    with pytest.raises(UsageError, match="--launcher mpirun: rootless Docker"):
        adapt(node(launcher="mpirun"), ROOTLESS_DOCKER)


def test_docker_compose_reads_only_the_clusters_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither COMPOSE_FILE nor the .env of the user's folder, which compose reads without --file."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\necho "$@" >>calls\nenv >>environ\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=os.pathsep)
    monkeypatch.setenv("COMPOSE_FILE", "/nonexistent.yaml")
    monkeypatch.setenv("DOCKER_CONFIG", "its")
    monkeypatch.chdir(tmp_path)
    api = SimpleNamespace(containers=lambda **_: [{"Id": "1"}])
    client = SimpleNamespace(api=api, info=lambda: DOCKER, close=lambda: None, networks=Mock(list=lambda **_: []))
    monkeypatch.setattr(containers, "connect", lambda *_: client)
    spec = ClusterSpec("test", "image", nodes=1, command=("train",))
    assert containers.start(spec, parts(spec), tmp_path / "its.yaml", "unix:///none") == ["1"]
    for call in Path("calls").read_text().splitlines():
        assert call.startswith(f"compose --project-name {spec.project} --file {tmp_path}/its.yaml ")
    seen = Path("environ").read_text().splitlines()
    assert "DOCKER_CONFIG=its" in seen
    assert not any(line.startswith("COMPOSE_") for line in seen)


@pytest.mark.parametrize("info", [DOCKER, PODMAN, ROOTLESS_PODMAN], ids=["Docker", "podman", "rootless podman"])
def test_an_image_that_was_removed_before_the_start_is_named_with_the_fix(
    info: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "docker"
    stub.write_text("#!/bin/sh\necho 'Error response from daemon: No such image: sha256:1' >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(find, "find", lambda: SimpleNamespace(engine=True))
    refuse = Mock(side_effect=NotFound("404", explanation="No such image: sha256:1"))
    client = SimpleNamespace(
        networks=Mock(list=lambda **_: []), info=lambda: info, close=lambda: None, images=Mock(get=refuse)
    )
    client.api = SimpleNamespace(create_container=refuse, create_host_config=Mock(), create_endpoint_config=Mock())
    monkeypatch.setattr(containers, "connect", lambda *_: client)
    monkeypatch.setattr(docker, "find_image_at", lambda *_: None)
    spec = ClusterSpec("test", "sha256:1", nodes=2, command=("train",))
    with pytest.raises(
        UsageError, match=r"^image sha256:1 is no longer in the engine .*: run the same command again$"
    ):
        containers.start(spec, parts(spec), tmp_path / "its.yaml", "unix:///none")
    monkeypatch.setattr(docker, "find_image_at", lambda *_: IMAGE)  # another reason
    with pytest.raises(UsageError, match=r"No such image: sha256:1$"):
        containers.start(spec, parts(spec), tmp_path / "its.yaml", "unix:///none")


OFFLINE = ClusterSpec("p", "image", command=("train",), offline=True)


class _Networks:
    """The networks of an engine. One that a container uses cannot be removed."""

    def __init__(self, internal: bool, users: dict[str, Any], labels: dict[str, str]) -> None:
        attributes = {"Internal": internal, "Containers": users, "Labels": labels}
        self.one = Mock(attrs=attributes, remove=self._remove)
        self.one.name = f"{OFFLINE.project}_cluster"
        self.found = [self.one]

    def list(self, filters: object = None, names: object = None) -> list[Any]:
        labelled = nodes.PROJECT_LABEL in self.one.attrs["Labels"]
        return [one for one in self.found if names == [self.one.name] or (filters and labelled)]

    def _remove(self) -> None:
        if self.one.attrs["Containers"]:
            raise APIError("x", response=Mock(status_code=403), explanation="p_cluster has active endpoints")
        self.found.clear()


@pytest.mark.parametrize(
    "labels",
    [{nodes.PROJECT_LABEL: OFFLINE.project}, {"com.docker.compose.network": "cluster"}],
    ids=["own", "foreign"],
)
@pytest.mark.parametrize("users", [{}, {"1": {"Name": "foreign"}}], ids=["unused", "used"])
def test_a_leftover_network_is_removed_or_named_and_never_used_again(
    users: dict[str, Any],
    labels: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Compose would reuse it: a job with --offline would reach every other network."""
    networks = _Networks(False, users, labels)
    api = SimpleNamespace(containers=lambda **_: [])
    client = SimpleNamespace(networks=networks, api=api, close=lambda: None, info=lambda: DOCKER)
    monkeypatch.setattr(containers, "connect", lambda *_: client)
    containers.remove(OFFLINE.project, "unix:///engine")
    said = capsys.readouterr().err
    assert containers.projects_of_networks("unix:///engine") == (
        {OFFLINE.project} if users and nodes.PROJECT_LABEL in labels else set()
    )
    if users:
        assert f"network {networks.one.name} of an earlier cluster is used by foreign" in said
        with pytest.raises(UsageError, match="is used by foreign: disconnect them"):
            containers.start(OFFLINE, {}, tmp_path / "x", "unix:///engine")
        return
    assert said == ""
    (tmp_path / "x").touch(0o644)
    monkeypatch.setattr(containers, "_compose_up", lambda *_: networks.found.append(networks.one))
    with pytest.raises(UsageError, match="is not as --offline asks"):
        containers.start(OFFLINE, {}, tmp_path / "x", "unix:///engine")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600  # it has the values of --env
