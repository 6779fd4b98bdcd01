"""A cluster's description, its containers, and their Compose document. Pure functions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, check_all
from cpu_train_stack.cli.numbers import MOST_CONTAINERS, MOST_RANKS, check_at_least
from cpu_train_stack.machine import shared_memory
from cpu_train_stack.machine.cpus import format_cpu_list
from cpu_train_stack.machine.facts import Core
from cpu_train_stack.plan.cores import divide
from tooling.basis import identity, yaml
from tooling.basis.paths import COMPOSE
from tooling.cluster import launchers, users
from tooling.cluster.spec import ContainerSpec, Mount, keys_folder, service

PROJECT_PREFIX = f"cts-{identity.IDENTITY}-"
LABELS = {identity.LABEL: identity.IDENTITY}
LAUNCHERS = ("torchrun", "mpirun")
BACKENDS = ("ccl", "gloo")
# The service that runs mpirun. The nodes of an mpirun cluster only run sshd.
LAUNCHER = "launcher"

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


def check_name(name: str) -> str:
    """The name if it can be part of the names of containers and networks. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--name is {name!r}, expected at most 31 lower-case letters, digits and dashes, not a dash first"
        )
    return name


def check_backend(backend: str) -> None:
    """Check the name of a process group, for commands that build an image first. Raises UsageError."""
    if backend not in BACKENDS:
        raise UsageError(f"--backend is {backend!r}, expected {' or '.join(BACKENDS)}")


def check_launcher(launcher: str) -> None:
    """Check the name of a launcher. Raises UsageError."""
    if launcher not in LAUNCHERS:
        raise UsageError(f"--launcher is {launcher!r}, expected {' or '.join(LAUNCHERS)}")


def check_memory(memory: str | None) -> None:
    """Check a container's memory limit. Raises UsageError."""
    if memory is not None and not re.fullmatch("[1-9][0-9]*[kmgKMG]", memory):
        raise UsageError(f"--memory is {memory!r}, expected a size such as 64g or 500m")


NodesOption = Annotated[int, "containers to start; they share the physical cores of this machine"]
RanksPerNodeOption = Annotated[int, "ranks (training processes) in each container"]
LauncherOption = Annotated[str, "what starts the ranks: torchrun, or mpirun (Intel MPI, over ssh)"]

MemoryOption = Annotated[str | None, "memory limit of each container, such as 64g; default: none"]
EnvOption = Annotated[
    tuple[str, ...],
    "NAME=VALUE for every rank, or NAME to pass your own value without printing it; may be repeated",
]


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster: `nodes` containers, each with `ranks_per_node` ranks that run `command`.

    Raises UsageError, one line with all invalid options.

    Fields with a help text are options of `./inv up`. `environment` maps a variable to its value, or to None to
    pass the caller's own value without writing it to a file. `cpus` limits each node's CPU time, in cores.
    `restarted`: the cluster replaces a cluster of the same name that failed.
    """

    name: Annotated[str, "the cluster's name; clusters with different names can run at the same time"] = "cluster"
    image: str = ""
    nodes: NodesOption = 2
    ranks_per_node: RanksPerNodeOption = 1
    command: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    offline: Annotated[bool, "connect the containers to each other, but to no other network"] = False
    launcher: LauncherOption = LAUNCHERS[0]
    memory: MemoryOption = None
    cpus: float | None = None
    restarted: bool = False

    def __post_init__(self) -> None:
        check_all(
            [
                partial(check_name, self.name),
                partial(check_at_least, "--nodes", self.nodes, 1, MOST_CONTAINERS),
                partial(check_at_least, "--ranks-per-node", self.ranks_per_node, 1, MOST_RANKS),
                partial(check_launcher, self.launcher),
                partial(check_memory, self.memory),
                partial(launchers.check_command, self.command, "./inv up -- train --help"),
            ]
        )

    @property
    def project(self) -> str:
        """Compose's project name, which begins the names of containers and networks. Unique to the checkout."""
        return PROJECT_PREFIX + self.name

    @property
    def node_names(self) -> list[str]:
        """The nodes' host names. Rank 0 runs on node-0."""
        return [f"node-{number}" for number in range(self.nodes)]

    @property
    def service_names(self) -> list[str]:
        """The nodes, and the launcher of an mpirun cluster."""
        return [*self.node_names, *([LAUNCHER] if self.launcher == "mpirun" else [])]


def shm_bytes(ranks: int, cpus: int) -> int:
    """The size of /dev/shm for a node's ranks on a host with `cpus`, and 1 GiB for everything else.

    Docker's default of 64 MB is too small even for data loading processes. The size is a limit: memory is
    allocated when it is used.
    """
    return (1 << 30) + shared_memory.needed(ranks, cpus)


def container(launcher: str, environment: Mapping[str, str | None], **own: Any) -> ContainerSpec:
    """A container with the properties in x-container of the launcher's file in compose/, and its `own`."""
    shared = yaml.read(COMPOSE / f"{launcher}.yaml")["x-container"]
    shared |= {name: tuple(value) for name, value in shared.items() if isinstance(value, list)}
    shared["stop_grace_period"] = int(shared["stop_grace_period"].removesuffix("s"))
    return ContainerSpec(**{**shared, **own, "environment": {**shared["environment"], **environment}})


def containers(spec: ClusterSpec, cores: Sequence[Core], keys: Path) -> dict[str, ContainerSpec]:
    """The containers of a cluster, by name. Its nodes share the physical `cores` of this machine.

    `keys`: the folder that tooling.cluster.keys fills, for mpirun only.
    """
    user = "{}:{}".format(*users.container_user())
    common: dict[str, Any] = {"image": spec.image, "user": user, "labels": LABELS}
    common["group_add"] = tuple(users.container_groups())
    environment = {contract.GRACE_SECONDS: "0", **spec.environment}  # ./inv stop and ctrl-C end the job at once
    mpirun = spec.launcher == "mpirun"
    common["tmpfs"] = (keys_folder(user),) if mpirun else ()
    found = {}
    for node_rank, (name, share) in enumerate(zip(spec.node_names, divide(cores, spec.nodes), strict=True)):
        launch = launchers.launch(
            spec.command,
            ranks_per_node=spec.ranks_per_node,
            nodes=spec.nodes,
            node_rank=node_rank,
            master_addr=spec.node_names[0],
            master_port=contract.MASTER_PORT,
        )
        found[name] = container(
            spec.launcher,
            {} if mpirun else environment,
            **common,
            hostname=name,
            cpuset=format_cpu_list(cpu for core in share for cpu in core.cpus),
            shm_size=shm_bytes(spec.ranks_per_node, shared_memory.online_cpus()),
            memory=spec.memory,
            cpus=spec.cpus,
            volumes=(*spec.mounts, *(_key_mounts(keys, name) if mpirun else ())),
            command=("sshd",) if mpirun else tuple(launch),
        )
    if mpirun:
        launch = launchers.mpi_launch(
            spec.command,
            variables=spec.environment,
            hosts=spec.node_names,
            ranks_per_node=spec.ranks_per_node,
            timeout=launchers.MPI_START_SECONDS,
        )
        own = {"hostname": LAUNCHER, "volumes": _key_mounts(keys, LAUNCHER), "command": tuple(launch)}
        found[LAUNCHER] = container("mpirun", environment, **common, **own)
    return found


def document(name: str, parts: Mapping[str, ContainerSpec], offline: bool, managed: bool = True) -> dict[str, Any]:
    """The Compose document of a project with these containers.

    `managed`: by ./inv, which removes with ./inv down what has its labels.
    """
    labels = {"labels": LABELS} if managed else {}
    services = {key: service(part if managed else replace(part, labels={})) for key, part in parts.items()}
    return {"name": name, "services": services, "networks": {"cluster": {**labels, "internal": offline}}}


def _key_mounts(keys: Path, name: str) -> tuple[Mount, ...]:
    return Mount(keys / name, "/run/keys"), Mount(keys / "passwd", "/etc/passwd")


def unescape(text: str) -> str:
    """A text of a Compose document, in which a doubled dollar sign is one."""
    return text.replace("$$", "$")
