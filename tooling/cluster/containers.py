"""Creates, stops and removes a cluster's containers: with docker compose, or on podman through the engine's API.

Podman's users may have no compose. Their containers have the names and labels that docker compose gives.
`adapt` has everything that differs between engines.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.printable import last_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.cli.signals import die_with_parent
from tooling.basis import yaml
from tooling.cluster import compose
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.nodes import PROJECT_LABEL, SERVICE_LABEL, detect_lost_engine
from tooling.cluster.spec import ContainerSpec, host_config
from tooling.engine import docker, failures, find, podman
from tooling.engine.client import connect
from tooling.engine.failures import EngineLostError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.networks import Network

STOP_SECONDS = 5
# On a machine that is very busy, an engine starts a container in minutes.
ANSWER_SECONDS = 600


def start(spec: ClusterSpec, parts: Mapping[str, ContainerSpec], file: Path, endpoint: str) -> list[str]:
    """Write the Compose document as this engine can run it; create and start the network and the containers.

    Returns the containers' IDs. Neither builds nor pulls images. Raises UsageError with the engine's message.
    """
    project = spec.project
    with _connected(endpoint) as client:
        for network in _networks(client, project):  # Compose would reuse it, also for --offline with a way out
            raise UsageError(f"{_use(network)}: disconnect them, and run the same command again")
        info = client.info()
        try:
            adapted = {key: adapt(part, info, endpoint) for key, part in parts.items()}
            document = compose.document(project, adapted, spec.offline)
            file.touch(0o600)  # it has the values of --env
            file.chmod(0o600)  # also if it is of an earlier version
            file.write_text(yaml.render([document]), encoding="utf-8")
            if podman.is_podman(info):
                return _start(client, project, spec.offline, adapted)
            _compose_up(project, file)
            _check_networks(client, project, spec.offline)
        except (failures.APIError, UsageError):
            for image in {part.image for part in parts.values()}:
                docker.read_image_at(endpoint, image)  # raises UsageError if the image was removed meanwhile
            raise
        return _containers(client, project)


def _start(client: "DockerClient", project: str, offline: bool, parts: Mapping[str, ContainerSpec]) -> list[str]:
    name = f"{project}_cluster"
    client.networks.create(name, internal=offline, labels={**compose.LABELS, PROJECT_LABEL: project})
    created = [_create(client, project, key, part, name) for key, part in parts.items()]
    _at_once(client.api.start, created)
    return created


def _compose_up(project: str, file: Path) -> None:
    """Start the containers with docker compose, whatever the user's own COMPOSE_* variables are.

    If it fails, raises EngineLostError if the engine does not answer, otherwise UsageError with its last line.
    """
    command = ["docker", "compose", "--project-name", project, "--file", str(file)]
    command += ["up", "--detach", "--no-build", "--pull=never"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    result = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, preexec_fn=die_with_parent
    )
    if result.returncode != 0:
        error = EngineLostError if find.find().engine is None else UsageError
        raise error(f"{' '.join(command[:4])} … failed: {last_line(result.stderr)}")


def stop(project: str, endpoint: str) -> None:
    """Send SIGTERM to a project's containers, and SIGKILL after STOP_SECONDS."""
    with _connected(endpoint) as client:
        _stop(client, _containers(client, project))


def remove(project: str, endpoint: str) -> None:
    """Stop and remove a project's containers with their volumes, and its network."""
    with _connected(endpoint) as client:
        found = _containers(client, project)
        _stop(client, found)
        for container in found:
            with _removed_meanwhile():
                client.api.remove_container(container, v=True, force=True)
        for network in _networks(client, project):
            try:
                with _removed_meanwhile():
                    network.remove()
            except failures.APIError:
                say(f"warning: {_use(network)}: disconnect them, and remove the network")


def projects_of_networks(endpoint: str) -> set[str]:
    """The projects that have a network, also those without a container."""
    with _connected(endpoint) as client:
        return {str(network.attrs["Labels"][PROJECT_LABEL]) for network in _networks(client)}


def _networks(client: "DockerClient", project: str = "") -> "list[Network]":
    """The networks of a project, or of every project. Compose also uses one of its name with other labels."""
    found = client.networks.list(filters={"label": f"{PROJECT_LABEL}={project}" if project else PROJECT_LABEL})
    named = client.networks.list(names=[f"{project}_cluster"]) if project else []
    return [*found, *(one for one in named if one.name == f"{project}_cluster" and one not in found)]


def _use(network: "Network") -> str:
    """Who keeps the network: a container that ./inv did not start."""
    with suppress(failures.APIError):
        network.reload()
    names = [str(one.get("Name")) for one in (network.attrs.get("Containers") or {}).values()]
    users = ", ".join(names) or "containers"
    return f"network {network.name} of an earlier cluster is used by {users}"


def _check_networks(client: "DockerClient", project: str, internal: bool) -> None:
    for network in _networks(client, project):
        if bool(network.attrs.get("Internal")) != internal:
            raise UsageError(f"network {network.name} is not as --offline asks: run ./inv down, and start again")


def adapt(spec: ContainerSpec, info: Mapping[str, Any], endpoint: str) -> ContainerSpec:
    """A container as the engine with this /info can run it: as the caller on the host, and on its own cores.

    Raises UsageError if the engine cannot.
    """
    security = " ".join(info.get("SecurityOptions") or ())
    rootless = bool(info.get("Rootless")) or "name=rootless" in security
    is_podman = podman.is_podman(info)
    # What podman reports about cpusets and limits is what root has.
    without_limits = is_podman and rootless and str(info.get("CgroupVersion")) == "1"
    changes: dict[str, Any] = {}
    if rootless:  # the engine's user namespace does not have the caller's other groups
        changes["group_add"] = ()
    if is_podman:
        # Podman's tmpfs has no uid and gid. The folder is as private as the container.
        changes["tmpfs"] = tuple(f"{entry.partition(':')[0]}:mode=1777,size=1m" for entry in spec.tmpfs)
    if rootless and not spec.tmpfs:
        # The caller, outside of the engine's user namespace. Mapping the caller's own id into the namespace would
        # need a copy of the image, because its files would have other owners.
        changes["user"] = "0:0"
    elif rootless and is_podman:
        changes["userns_mode"] = "keep-id"  # sshd refuses root
    elif rootless:
        raise UsageError(
            "--launcher mpirun: rootless Docker runs the nodes as root of its own user namespace, which sshd "
            "refuses: use --launcher torchrun, or --engine podman"
        )
    elif "name=userns" in security:
        changes["userns_mode"] = "host"
    if not info.get("PidsLimit") or without_limits:
        changes["pids_limit"] = 0
    if spec.memory and (without_limits or not info.get("MemoryLimit")):
        raise UsageError(
            f"--memory {spec.memory}: this engine cannot limit memory: without root, that needs cgroup v2 and "
            "systemd: leave out --memory"
        )
    if spec.cpuset and not (info.get("CPUSet") and not (is_podman and rootless)):
        own = docker.read_image_at(endpoint, spec.image).configuration.get("Entrypoint") or ()
        changes |= {"cpuset": "", "entrypoint": ("taskset", "--cpu-list", spec.cpuset, *own)}
    return replace(spec, **changes)


def _create(client: "DockerClient", project: str, name: str, spec: ContainerSpec, network: str) -> str:
    from docker.types import NetworkingConfig

    host = client.api.create_host_config(network_mode=network, **host_config(spec))
    if spec.userns_mode:
        host["UsernsMode"] = spec.userns_mode  # docker-py knows Docker's modes only
    joined = NetworkingConfig()
    joined["EndpointsConfig"] = {network: client.api.create_endpoint_config(aliases=[name])}
    # A variable without a value gets the caller's own.
    variables = {key: os.environ.get(key) if value is None else value for key, value in spec.environment.items()}
    created = client.api.create_container(
        spec.image,
        [*spec.command],
        name=f"{project}-{name}-1",
        hostname=spec.hostname,
        user=spec.user,
        entrypoint=[*spec.entrypoint] or None,
        environment={key: value for key, value in variables.items() if value is not None},
        labels={**spec.labels, PROJECT_LABEL: project, SERVICE_LABEL: name},
        stop_timeout=spec.stop_grace_period,
        host_config=host,
        networking_config=joined,
    )
    return str(created["Id"])


def _containers(client: "DockerClient", project: str) -> list[str]:
    found = client.api.containers(all=True, filters={"label": f"{PROJECT_LABEL}={project}"})
    return [container["Id"] for container in found]


def _stop(client: "DockerClient", containers: Iterable[str]) -> None:
    def stop(container: str) -> None:
        with suppress(failures.APIError):  # it has ended, or is paused: removing it kills it
            client.api.stop(container, timeout=STOP_SECONDS)

    _at_once(stop, containers)


def _at_once(call: Callable[[str], object], containers: Iterable[str]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(call, containers))  # raises the first error


@contextmanager
def _removed_meanwhile() -> Iterator[None]:
    """Ignores that another command has removed, or is removing, the object."""
    try:
        yield
    except failures.APIError as error:
        if error.status_code not in (404, 409):
            raise


@contextmanager
def _connected(endpoint: str) -> "Iterator[DockerClient]":
    """A client of the engine. Raises EngineLostError, or UsageError with the engine's message."""
    try:
        with detect_lost_engine(endpoint), closing(connect(endpoint, ANSWER_SECONDS)) as client:
            yield client
    except failures.APIError as error:
        message = " ".join(str(error.explanation or error).split())
        raise UsageError(f"the engine at {endpoint} refused the cluster: {message}") from None
