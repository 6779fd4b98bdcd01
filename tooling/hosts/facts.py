"""Parses the answers of the hosts to the checks, and finds problems. Pure: text in, one line per problem out."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpu_train_stack import contract
from cpu_train_stack.machine.cpus import Cpu, parse_model
from tooling.hosts.job import Job


@dataclass(frozen=True)
class Facts:
    """The properties of a host. `addresses` maps each IPv4 address except loopback to its interface.

    `ssh_address` and `ssh_port`: the host's end of the ssh connection. `clock`: by how many seconds the host's
    clock is ahead of this machine's, give or take `clock_error`. `image_content`: equal on hosts with the same
    image, whose ID is another one where Docker keeps images in containerd. `free_uid`: an ID without an account.
    """

    uid: str
    gid: str
    free_uid: str
    home: str
    free_bytes: int
    cpus: int
    addresses: Mapping[str, str]
    ssh_address: str
    ssh_port: str
    listening: frozenset[int]
    cpu: Cpu
    image_id: str = ""
    image_content: str = ""
    clock: float = 0.0
    clock_error: float = 0.0

    @property
    def container_user(self) -> tuple[str, str]:
        """The uid and gid of the ranks: those of the ssh user, who then owns the output, but never root's.

        For root, IDs of nobody: a user with the same uid could read the job's secrets.
        """
        return (self.free_uid, self.free_uid) if self.uid == "0" else (self.uid, self.gid)


def parse(text: str) -> Facts:
    """Parse the output of commands.FACTS. Raises ValueError, KeyError or IndexError for any other text.

    Commands on the other hosts contain the addresses and the port: a host must not choose their text.
    """
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(" ")
        lines.setdefault(key, []).append(rest)
    uid, gid, home = lines["user"][0].split(" ", 2)
    connection = lines["ssh"][0].split()
    addresses = {}
    for line in lines.get("address", []):
        if found := re.search(r"^\d+: ([^\s@]+)\S*\s+inet ([\d.]+)", line):
            addresses[str(ipaddress.IPv4Address(found[2]))] = _interface(found[1])
    ports = [line.split()[3].rpartition(":")[2] for line in lines.get("listening", [])]
    return Facts(
        uid=str(_count(uid)),
        gid=str(_count(gid)),
        free_uid=str(_count(lines["free"][0])),
        home=home,
        free_bytes=_count(lines["memory"][0].split()[0]) << 10,
        cpus=_count(lines["cpus"][0]),
        addresses={ip: name for ip, name in addresses.items() if not ipaddress.ip_address(ip).is_loopback},
        ssh_address=connection[2],
        ssh_port=_port(connection[3]),
        listening=frozenset(int(port) for port in ports if port.isdigit()),
        cpu=parse_model(lines["cpu"]),
    )


def clock_offset(answer: str, sent: float, received: float) -> tuple[float, float]:
    """How far a host's clock is ahead of this machine's, and the possible error, in seconds. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,15}\.[0-9]+\s*", answer):  # float() also reads "nan", which is never too far off
        raise ValueError(f"{answer!r} is not a time")
    return float(answer) - (sent + received) / 2, (received - sent) / 2


def problems(job: Job, indices: Sequence[int], known: Sequence[Facts]) -> list[str]:
    """One line for each problem of the hosts at `indices` of job.nodes, compared with the first of them."""
    found = []
    first_name, first = job.nodes[indices[0]].name, known[0]
    for index, host in zip(indices, known, strict=True):
        name = job.nodes[index].name
        lines = [*_resources(job, index, host), *_differences(first_name, first, host)]
        found += [f"{name}: {line}" for line in lines]
        if host.image_content != first.image_content:
            found.append(
                f"{name}: {job.reference} differs from the image on {first_name} ({_short(host.image_id)}, "
                f"expected {_short(first.image_id)}): push it with ./inv push and pass --image-lock"
            )
    return found


def candidates(first: Facts, resolved: Sequence[str]) -> list[str]:
    """The addresses under which other hosts may reach the first host, the most likely first.

    The order: `resolved` (its name, resolved on another host), the address that ssh used, all other addresses.
    """
    wanted = [*resolved, first.ssh_address, *first.addresses]
    return list(dict.fromkeys(address for address in wanted if address in first.addresses))


def route(text: str) -> tuple[str, str]:
    """The interface and source address in the output of `ip route get`. Raises ValueError if there is no route."""
    found = re.search(r"\bdev (\S+).*? src (\S+)", text)
    if not found:
        raise ValueError(" ".join(text.split()))
    return _interface(found[1]), str(ipaddress.IPv4Address(found[2]))


def _interface(name: str) -> str:
    if not re.fullmatch(r"[\w.@-]+", name, re.ASCII):
        raise ValueError(f"{name!r} is not the name of an interface")
    return name


def _count(text: str) -> int:
    """Of digits that sums can be computed with, and printed."""
    if not re.fullmatch("[0-9]{1,15}", text):
        raise ValueError(f"{text[:50]!r} is not a number")
    return int(text)


def _port(text: str) -> str:
    if not 1 <= _count(text) <= 65535:
        raise ValueError(f"{text!r} is not a port")
    return str(int(text))


def same_host(names: Sequence[str], addresses: Sequence[str]) -> list[str]:
    """One line for each host with the same address as an earlier one."""
    return [
        f"{name}: is the same host as {names[addresses.index(address)]} ({address}): remove one of the two lines"
        for index, (name, address) in enumerate(zip(names, addresses, strict=True))
        if address in addresses[:index]
    ]


def _resources(job: Job, index: int, host: Facts) -> list[str]:
    found = []
    if host.free_bytes < job.bytes_per_host:
        free, needed = (f"{size / (1 << 30):.1f}" for size in (host.free_bytes, job.bytes_per_host))
        found.append(
            f"{free} GiB of memory are free, expected {needed} for {job.local_world_size} ranks: "
            "stop other programs there, or lower --ranks-per-node"
        )
    ports = ([job.port] if index == 0 else []) + ([job.ssh_port] if job.mpirun else [])
    found += [
        f"port {port} is in use, expected a free port: stop the program that uses it, or choose another --port"
        for port in ports
        if port in host.listening
    ]
    return found


def _differences(first_name: str, first: Facts, host: Facts) -> list[str]:
    found = []
    offset, error = host.clock - first.clock, host.clock_error + first.clock_error
    if abs(offset) - error > contract.MAX_CLOCK_SKEW_SECONDS:
        found.append(
            f"its clock is {offset:+.1f} s off the clock of {first_name}, expected less than 1 s: set up NTP on "
            "both hosts"
        )
    if host.cpu.machine != first.cpu.machine:
        found.append(
            f"its CPU is {host.cpu.machine}, that of {first_name} {first.cpu.machine}: remove one of the two hosts"
        )
        return found
    missing = [feature for feature in first.cpu.features if feature not in host.cpu.features]
    extra = [feature for feature in host.cpu.features if feature not in first.cpu.features]
    parts = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", missing), ("also has", extra)) if names]
    if parts:
        found.append(
            f"its CPU {' and '.join(parts)}, compared with {first_name}: expected the same features on all hosts"
        )
    return found


def _short(identifier: str) -> str:
    return identifier.removeprefix("sha256:")[:12]
