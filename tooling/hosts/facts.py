"""Parses and judges what the hosts answer to the checks. Pure: text in, one line for each problem out."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from entrypoints import contract
from entrypoints.machine.cpus import Cpu, parse_model
from tooling.hosts.job import Job

# User and group of the containers if the ssh user is root: ranks never run as root.
NOT_ROOT = ("1000", "1000")


@dataclass(frozen=True)
class Facts:
    """A host as its own tools show it. `addresses`: interface by IPv4 address, loopback's left out.

    `ssh_address` and `ssh_port`: what the connection arrived at. `clock`: seconds ahead of this machine's,
    `clock_error` of which may be wrong.
    """

    uid: str
    gid: str
    home: str
    free_bytes: int
    cpus: int
    addresses: Mapping[str, str]
    ssh_address: str
    ssh_port: str
    listening: frozenset[int]
    cpu: Cpu
    clock: float = 0.0
    clock_error: float = 0.0

    @property
    def container_user(self) -> tuple[str, str]:
        """uid and gid of the job's processes: the ssh user's, so that this user owns the output; never root's."""
        return NOT_ROOT if self.uid == "0" else (self.uid, self.gid)


def parse(text: str) -> Facts:
    """What commands.FACTS printed. Raises ValueError, KeyError or IndexError for anything else."""
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(" ")
        lines.setdefault(key, []).append(rest)
    uid, gid, home = lines["user"][0].split(" ", 2)
    connection = lines["ssh"][0].split()
    addresses = {}
    for line in lines.get("address", []):
        if found := re.search(r"^\d+: ([^\s@]+)\S*\s+inet ([\d.]+)", line):
            addresses[found[2]] = found[1]
    ports = [line.split()[3].rpartition(":")[2] for line in lines.get("listening", [])]
    return Facts(
        uid=uid,
        gid=gid,
        home=home,
        free_bytes=int(lines["memory"][0].split()[0]) << 10,
        cpus=int(lines["cpus"][0]),
        addresses={one: name for one, name in addresses.items() if not ipaddress.ip_address(one).is_loopback},
        ssh_address=connection[2],
        ssh_port=connection[3],
        listening=frozenset(int(port) for port in ports if port.isdigit()),
        cpu=parse_model(lines["cpu"]),
    )


def clock_offset(answer: str, sent: float, received: float) -> tuple[float, float]:
    """How far a host's clock is ahead of this one, and how wrong that may be, in seconds."""
    return float(answer) - (sent + received) / 2, (received - sent) / 2


def problems(job: Job, at: Sequence[int], facts: Sequence[Facts], images: Sequence[str]) -> list[str]:
    """One line for each problem of the hosts at the indices `at` of the job's list.

    All hosts are compared with the first of them.
    """
    found = []
    name = job.hosts[at[0]].name
    for index, its, image in zip(at, facts, images, strict=True):
        host = job.hosts[index].name
        found += [f"{host}: {text}" for text in (*_alone(job, index, its), *_beside(name, facts[0], its))]
        if image != images[0]:
            found.append(
                f"{host}: {job.image} differs from the image on {name} "
                f"({_short(image)}, expected {_short(images[0])}): push it and launch with --image-lock"
            )
    return found


def candidates(first: Facts, resolved: Sequence[str]) -> list[str]:
    """Addresses of the first host that the others may reach it by, the likeliest first.

    In this order: `resolved` (what its name resolves to on the others), the address that ssh used, all others.
    """
    wanted = [*resolved, first.ssh_address, *first.addresses]
    return list(dict.fromkeys(address for address in wanted if address in first.addresses))


def route(text: str) -> tuple[str, str]:
    """Interface and own address of what `ip route get` printed. Raises ValueError where there is no route."""
    found = re.search(r"\bdev (\S+).*? src (\S+)", text)
    if not found:
        raise ValueError(" ".join(text.split()))
    return found[1], found[2]


def same_host(names: Sequence[str], addresses: Sequence[str]) -> list[str]:
    """One line for each name whose address is that of an earlier one."""
    return [
        f"{name}: is the same host as {names[addresses.index(address)]} ({address}): remove one of the two lines"
        for place, (name, address) in enumerate(zip(names, addresses, strict=True))
        if address in addresses[:place]
    ]


def _alone(job: Job, index: int, its: Facts) -> list[str]:
    found = []
    if its.free_bytes < job.bytes_per_host:
        free, wanted = (f"{size / (1 << 30):.1f}" for size in (its.free_bytes, job.bytes_per_host))
        found.append(
            f"{free} GiB of memory are free, expected {wanted} for {job.ranks_per_node} ranks: "
            "stop other programs there, or lower --ranks-per-node"
        )
    ports = ([job.port] if index == 0 else []) + ([job.ssh_port] if job.mpirun else [])
    found += [
        f"port {port} is in use, expected a free port: stop the program that uses it, or choose another --port"
        for port in ports
        if port in its.listening
    ]
    return found


def _beside(name: str, first: Facts, its: Facts) -> list[str]:
    found = []
    apart, error = its.clock - first.clock, its.clock_error + first.clock_error
    if abs(apart) - error > contract.MAX_CLOCK_SKEW_SECONDS:
        found.append(f"its clock is {apart:+.1f} s off that of {name}, expected less than 1 s: set up NTP on both")
    if its.cpu.machine != first.cpu.machine:
        found.append(
            f"its CPU is {its.cpu.machine}, that of {name} {first.cpu.machine}: remove one of the two hosts"
        )
    else:
        lacks = [feature for feature in first.cpu.features if feature not in its.cpu.features]
        has = [feature for feature in its.cpu.features if feature not in first.cpu.features]
        parts = ([f"lacks {', '.join(lacks)}"] if lacks else []) + ([f"has {', '.join(has)} more"] if has else [])
        if parts:
            found.append(
                f"its CPU {' and '.join(parts)}, compared with {name}: expected the same features on all hosts"
            )
    return found


def _short(identifier: str) -> str:
    return identifier.removeprefix("sha256:")[:12]
