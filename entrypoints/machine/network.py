"""Which network interface leads to rank 0's node. Torch-free.

A cluster host has several interfaces, and its own name often resolves to loopback: a backend that looks its
host name up may advertise an address that no other node can reach. The route to `master_addr` is the one
that the job's traffic can take for sure.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import time
from pathlib import Path

from entrypoints.cli.errors import MeetingError, UsageError
from entrypoints.machine.facts import Interface, Route
from entrypoints.placement.detect import DistributedEnvironment

_SIOCGIFADDR = 0x8915
_RETRY_SECONDS = 0.5
_ARPHRD_LOOPBACK = "772"


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def resolve(host: str, deadline_seconds: float = 0.0) -> str:
    """The address of `host`, IPv4 before IPv6, tried again until the deadline: a cluster's DNS may lag.

    Raises MeetingError where the name does not resolve in that time.
    """
    end = time.monotonic() + deadline_seconds
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _RETRY_SECONDS > end:
                raise MeetingError(
                    f"MASTER_ADDR {host!r} does not resolve on {socket.gethostname()} ({error}), expected a name "
                    "or address that every node can resolve: correct it, or see the cluster's DNS and /etc/hosts"
                ) from error
            time.sleep(_RETRY_SECONDS)
        else:
            return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def wait_for_port(host: str, port: int, deadline_seconds: float) -> None:
    """Returns when a connection to the port has been made and closed. Raises UsageError after the deadline."""
    end = time.monotonic() + deadline_seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=max(1.0, end - time.monotonic())).close()
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > end:
                raise UsageError(
                    f"nobody listens at {host}:{port} within {deadline_seconds:g} s ({error}), expected the "
                    "launcher where the nodes meet: see that it runs, and that the network lets this node reach it"
                ) from error
            time.sleep(_RETRY_SECONDS)
        else:
            return


def source_address(address: str) -> str:
    """This host's own address on the route to `address`. Nothing is sent. Raises MeetingError without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise MeetingError(
                f"no route to MASTER_ADDR {address} from {socket.gethostname()} ({error}): "
                "connect the nodes by a network, or set MASTER_ADDR to an address on the one they share"
            ) from error
        return str(probe.getsockname()[0])


def interfaces(if_inet6: Path = Path("/proc/net/if_inet6")) -> dict[str, list[str]]:
    """The addresses of every interface: the primary IPv4 one and all of IPv6."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            found[name] = []
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            found[name].append(socket.inet_ntoa(reply[20:24]))
    if if_inet6.exists():
        for line in if_inet6.read_text().splitlines():
            fields = line.split()
            found.setdefault(fields[5], []).append(str(ipaddress.IPv6Address(bytes.fromhex(fields[0]))))
    return found


def interface_of(address: str, table: dict[str, list[str]]) -> str:
    """The interface that holds `address`. All of 127.0.0.0/8 is the loopback interface's."""
    for name, addresses in table.items():
        if address in addresses or (is_loopback(address) and any(is_loopback(other) for other in addresses)):
            return name
    raise UsageError(
        f"no interface holds {address}, this host's address on the route to MASTER_ADDR (found {table}): "
        "set GLOO_SOCKET_IFNAME to the interface to use"
    )


def route(master_addr: str, deadline_seconds: float = 0.0) -> Route:
    """The way from this host to `master_addr`. Raises UsageError where there is none."""
    address = resolve(master_addr, deadline_seconds)
    source = source_address(address)
    return Route(master_addr, address, source, interface_of(source, interfaces()))


def describe(root: Path = Path("/")) -> tuple[Interface, ...]:
    """The interfaces as `root`/sys shows them, by name; addresses are known under the real root only."""
    held = interfaces() if root == Path("/") else {}
    found = []
    for folder in sorted((root / "sys/class/net").glob("*/")):
        speed = _text(folder / "speed")  # virtual ones have none, or say -1
        found.append(
            Interface(
                name=folder.name,
                addresses=tuple(held.get(folder.name, ())),
                is_loopback=_text(folder / "type") == _ARPHRD_LOOPBACK,
                # Loopback and tunnels are "unknown" while they work.
                is_up=_text(folder / "operstate") in ("up", "unknown"),
                mtu=int(_text(folder / "mtu") or 0),
                speed_mbits=int(speed) if speed.isdigit() else None,
            )
        )
    return tuple(found)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # an interface that is down refuses to tell its speed
        return ""


def choose(environment: DistributedEnvironment, wanted: str = "", deadline_seconds: float = 0.0) -> str:
    """The interface for the process group: `wanted` (the user's own choice) or the one on the route to rank 0.

    Raises UsageError for an unknown interface, and for loopback where there are several nodes: that covers a
    host name that /etc/hosts maps to 127.0.1.1 on rank 0's own node, as Debian's installer writes it.
    """
    table = interfaces()
    if wanted:
        if wanted not in table:
            raise UsageError(
                f"GLOO_SOCKET_IFNAME is {wanted!r}, expected one of {', '.join(table)}: correct or unset it"
            )
        name, why = wanted, f"GLOO_SOCKET_IFNAME={wanted}"
    else:
        found = route(environment.master_addr, deadline_seconds)
        name = found.interface
        why = f"MASTER_ADDR {environment.master_addr!r} is {found.address} on {socket.gethostname()}"
    if environment.several_nodes and any(is_loopback(address) for address in table[name]):
        raise UsageError(
            f"{why}, which is loopback ({name}), but the {environment.world_size} ranks are on several nodes: "
            "set MASTER_ADDR to an address that the others reach (a 127.0.1.1 line in /etc/hosts hides it)"
        )
    return name
