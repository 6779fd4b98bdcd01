"""A job on hosts: the options of `./inv launch`, the values that follow from them, and a Place for each host."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Annotated

from cpu_train_stack import contract
from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError, check_all
from cpu_train_stack.cli.numbers import MOST_RANKS, check_at_least
from cpu_train_stack.placement import hostfile
from cpu_train_stack.placement.hostfile import HostfileEntry
from tooling.basis.identity import IDENTITY
from tooling.cluster import compose, launchers, up
from tooling.image.choice import Choice
from tooling.image.sign import KeyOption

# A job uses this many ports, starting at --port: the rendezvous, then hydra and libfabric, and last sshd.
PORTS = 500
# docker does not read longer lines of an --env-file.
_LONGEST_VARIABLE = 64 << 10


@dataclass(frozen=True)
class Job:
    """Raises UsageError, one line with all options that cannot be used."""

    command: tuple[str, ...]
    hosts: Annotated[
        str, "required: a file with one host on each line, named as in ~/.ssh/config; rank 0 runs on the first"
    ] = ""
    ranks_per_node: Annotated[
        int | None, "training processes on each host; default: the slots in the file, else 1"
    ] = None
    launcher: compose.LauncherOption = "torchrun"
    name: Annotated[
        str, "the job's name; jobs with different names and different --port can run at the same time"
    ] = "job"
    pin: Annotated[str | None, "a row of ./inv matrix, whose image every host has; default: the first row"] = None
    image_lock: Annotated[
        str | None, "run the image in this image.lock.json of ./inv push; hosts without it pull it by digest"
    ] = None
    image: Annotated[
        str | None, "run this image instead, such as HOST/NAME@sha256:…; hosts without it pull it"
    ] = None
    key: KeyOption = None
    data: Annotated[str | None, "a folder on every host, mounted read-only at /data"] = None
    output: Annotated[
        str | None, "a folder on every host, mounted at /output; default: ~/cpu-train-stack/IDENTITY/NAME"
    ] = None
    hub: Annotated[
        str | None, "a folder on every host for downloads from the Hugging Face hub, mounted at /hub (HF_HOME)"
    ] = None
    env: compose.EnvOption = ()
    memory: compose.MemoryOption = None
    port: Annotated[int, "where the ranks meet; the job also uses the next 499 ports"] = contract.MASTER_PORT

    def __post_init__(self) -> None:
        check_all(
            [
                lambda: self.local_world_size,
                partial(compose.check_name, self.name),
                partial(compose.check_launcher, self.launcher),
                partial(compose.check_memory, self.memory),
                partial(launchers.check_command, self.command, "./inv launch --hosts hosts -- train --help"),
                self._check_port,
                *(partial(_check_path, flag, getattr(self, flag)) for flag in ("data", "output", "hub")),
                lambda: self.reference,
                lambda: self.environment,
            ]
        )

    def _check_port(self) -> None:
        if not 1024 <= self.port <= 65536 - PORTS:
            raise UsageError(
                f"--port is {self.port}, expected 1024 to {65536 - PORTS}: the job uses {PORTS} ports from there"
            )

    @cached_property
    def nodes(self) -> tuple[HostfileEntry, ...]:
        """The hosts in the order of the file: rank 0 runs on the first."""
        if not self.hosts:
            raise UsageError("launch needs --hosts: a file with a host's name on each line")
        return read_hosts(Path(self.hosts))

    @cached_property
    def local_world_size(self) -> int:
        """The ranks on each host."""
        return ranks_on_each(self.nodes, self.ranks_per_node)

    @cached_property
    def reference(self) -> str:
        """The image's name, or its digest with --image-lock."""
        return Choice(self.pin, image_lock=self.image_lock, image=self.image, key=self.key).reference

    @property
    def is_pulled(self) -> bool:
        """Whether hosts without the image pull it. A tag of this checkout is in no registry."""
        return bool(self.image_lock or self.image)

    @cached_property
    def environment(self) -> Mapping[str, str | None]:
        """The value of each variable, or None if the value comes from the environment of ./inv launch."""
        return up.variables(self.env)

    @property
    def mpirun(self) -> bool:
        return self.launcher == "mpirun"

    @property
    def port_range(self) -> tuple[int, int]:
        """The ports on which libfabric, ccl and hydra listen."""
        return self.port + 1, self.port + PORTS - 2

    @property
    def ssh_port(self) -> int:
        """The port of sshd in the containers of an mpirun job."""
        return self.port + PORTS - 1

    @property
    def forwarded(self) -> list[str]:
        """The variables whose values come from the environment of ./inv launch."""
        return [name for name, value in self.environment.items() if value is None]

    @property
    def bytes_per_host(self) -> int:
        """The free memory that a host needs: the limit if the job has one, else 1 GiB per rank."""
        if self.memory is None:
            return self.local_world_size << 30
        return int(self.memory[:-1]) << {"k": 10, "m": 20, "g": 30}[self.memory[-1].lower()]

    def container(self, index: int) -> str:
        """The name of the container on host `index`, unique to this checkout."""
        return f"cts-job-{IDENTITY}-{self.name}-{index}"


def _check_path(flag: str, path: str | None) -> None:
    if path is not None and (not PurePosixPath(path).is_absolute() or re.search(r'[,"\n]', path)):
        raise UsageError(
            f"--{flag} is {path!r}, expected an absolute path on the hosts, without commas, quotes and line breaks"
        )


def read_hosts(path: Path) -> tuple[HostfileEntry, ...]:
    """The hosts in the order of the lines: rank 0 is on the first. Raises UsageError, one line.

    The image's mpi-launch reads the same grammar. Ports, keys and jump hosts come from the ssh configuration.
    """
    try:
        return hostfile.parse(files.read_given(path).splitlines(), "line", users=True)
    except FileNotFoundError:
        raise UsageError(
            f"--hosts {path} does not exist: expected a file with a host's name on each line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hosts {path} cannot be read: {error}") from None
    except ValueError as error:
        raise UsageError(f"--hosts {path}: {error}") from None


def ranks_on_each(hosts: tuple[HostfileEntry, ...], ranks_per_node: int | None) -> int:
    """Ranks on each host: `ranks_per_node`, else the slots of every line, else 1. Raises UsageError."""
    slots = {host.slots for host in hosts}
    if ranks_per_node is None:
        if len(slots) > 1:
            found = ", ".join(f"{host.name} {host.slots or 'none'}" for host in hosts)
            raise UsageError(
                f"slots differ ({found}): use the same number on every line, or pass --ranks-per-node"
            )
        return slots.pop() or 1
    check_at_least("--ranks-per-node", ranks_per_node, 1, MOST_RANKS)
    for host in hosts:
        if host.slots is not None and host.slots < ranks_per_node:
            raise UsageError(
                f"--ranks-per-node is {ranks_per_node}, but {host.name} has slots={host.slots}: "
                "lower --ranks-per-node, or raise slots"
            )
    return ranks_per_node


def forwarded_values(job: Job, environ: Mapping[str, str]) -> bytes:
    """The variables of `job.forwarded` and their values, as docker's --env-file. Raises UsageError."""
    up.check_set(job.forwarded, environ)
    text = ""
    for name in job.forwarded:
        value = environ[name]
        if "\n" in value or "\r" in value:
            raise UsageError(
                f"--env {name}: its value has several lines, expected one line: put it into a file instead"
            )
        if value.encode(errors="replace").decode() != value:
            raise UsageError(f"--env {name}: its value is not text in UTF-8: put it into a file instead")
        if len(f"{name}={value}".encode()) >= _LONGEST_VARIABLE:
            raise UsageError(f"--env {name}: its value is longer than 64 KiB: put it into a file instead")
        text += f"{name}={value}\n"
    return text.encode()


@dataclass(frozen=True)
class Place:
    """One host, after the checks. `address` and `interface` are those on the route to the first host."""

    uid: str
    gid: str
    output: str
    shm_bytes: str
    image_id: str
    address: str
    interface: str


def placeholder(index: int, output: str | None) -> Place:
    """The names that a dry run shows instead of the facts about host `index`."""
    return Place(
        uid="UID",
        gid="GID",
        output=output or "HOME_OUTPUT",
        shm_bytes="SHM_BYTES",
        image_id="IMAGE_ID",
        address=f"ADDRESS_{index}",
        interface=f"INTERFACE_{index}",
    )
