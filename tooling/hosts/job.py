"""A job on hosts: the request, and the facts that are only known once the hosts were checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from entrypoints import contract
from entrypoints.launch.mpi.hostfile import Host
from tooling.basis.errors import UsageError
from tooling.basis.identity import IDENTITY
from tooling.cluster.compose import check_launcher_and_memory

# Ports from the meeting port on: that one, hydra's and libfabric's, and the last for the containers' sshd.
PORTS = 500


@dataclass(frozen=True)
class Job:
    """`environment` maps a variable to its value, or to None to hand on the caller's own value unseen.

    `data`, `output` and `hub` are folders of the hosts, `output` None for one in the user's home there.
    `locked`: `image` is a reference by digest, which a host may pull. `port`: where the ranks meet.
    """

    name: str
    hosts: tuple[Host, ...]
    ranks_per_node: int
    launcher: str
    image: str
    locked: bool
    command: tuple[str, ...]
    data: str | None = None
    output: str | None = None
    hub: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    memory: str | None = None
    port: int = contract.MASTER_PORT

    def __post_init__(self) -> None:
        check_launcher_and_memory(self.launcher, self.memory)
        if not self.command:
            raise UsageError(
                "no command: write it after --, for example ./inv launch --hosts hosts -- train --help"
            )
        if not 1024 <= self.port <= 65536 - PORTS:
            raise UsageError(
                f"--port is {self.port}, expected 1024 to {65536 - PORTS}: the job uses {PORTS} ports from it on"
            )
        for flag in ("data", "output", "hub"):
            path = getattr(self, flag)
            if path is not None and (not PurePosixPath(path).is_absolute() or re.search(r'[,"\n]', path)):
                raise UsageError(f"--{flag} is {path!r}, expected an absolute path on the hosts, without commas")

    @property
    def mpirun(self) -> bool:
        return self.launcher == "mpirun"

    @property
    def port_range(self) -> tuple[int, int]:
        """What libfabric, ccl and hydra listen at."""
        return self.port + 1, self.port + PORTS - 2

    @property
    def ssh_port(self) -> int:
        """What sshd listens at in the containers of mpirun's jobs."""
        return self.port + PORTS - 1

    @property
    def secrets(self) -> list[str]:
        """The variables whose values are the caller's own."""
        return [name for name, value in self.environment.items() if value is None]

    @property
    def bytes_per_host(self) -> int:
        """Memory that a host has to have free: the limit if there is one, else 1 GiB a rank."""
        if self.memory is None:
            return self.ranks_per_node << 30
        return int(self.memory[:-1]) << {"k": 10, "m": 20, "g": 30}[self.memory[-1].lower()]

    def container(self, index: int) -> str:
        """The name of the container of host `index`, unique to this checkout."""
        return f"cts-job-{IDENTITY}-{self.name}-{index}"


@dataclass(frozen=True)
class Place:
    """What is found on a host. `address` and `interface`: its own on the way to the first host."""

    uid: str
    gid: str
    output: str
    shm_bytes: str
    image_id: str
    address: str
    interface: str


def unknown(index: int, output: str | None) -> Place:
    """What a dry run shows in the place of what would be found."""
    names = (
        "UID",
        "GID",
        output or "HOME_OUTPUT",
        "SHM_BYTES",
        "IMAGE_ID",
        f"ADDRESS_{index}",
        f"INTERFACE_{index}",
    )
    return Place(*names)
