"""The network interface that leads to rank 0's node, and addresses. Torch-free.

A cluster host has several interfaces, and its own name often resolves to loopback: a backend that resolves the
host name may advertise an address that no other node can reach. The route to MASTER_ADDR avoids this.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable, TypeVar

from cpu_train_stack.cli.errors import MeetingError, UsageError

T = TypeVar("T")

# The variable with the user's choice of an interface. Despite its name, it applies to every backend of this stack.
USERS_CHOICE = "GLOO_SOCKET_IFNAME"
_IP = (socket.AF_INET, socket.AF_INET6)
_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class Route:
    """The route to `master_addr`: its address, this host's own address on the route, and the interface."""

    master_addr: str
    address: str
    source: str
    interface: str


@dataclass(frozen=True)
class InterfaceChoice:
    """The interface over which the ranks communicate, and why, in words."""

    interface: str
    reason: str


def choose(
    master_addr: str,
    several_nodes: bool,
    wanted: str = "",
    deadline_seconds: float = 0.0,
    table: Mapping[str, list[str]] | None = None,
) -> InterfaceChoice:
    """The interface for the process group: `wanted` (from USERS_CHOICE), or the one on the route to rank 0.

    No other code decides this. `table`: addresses by interface, by default this host's. Raises UsageError for
    an unknown interface and, if there are several nodes, for loopback. Loopback may come from a host name that
    /etc/hosts maps to 127.0.1.1 on rank 0's own node, as Debian's installer writes it.
    """
    table = interfaces() if table is None else table
    if wanted:
        if wanted not in table:
            shown = ", ".join(" ".join((name, *addresses)) for name, addresses in table.items())
            raise UsageError(
                f"{USERS_CHOICE} is {wanted!r}, expected one of {shown}: "
                f"unset {USERS_CHOICE}, or name one of these"
            )
        choice = InterfaceChoice(wanted, f"{USERS_CHOICE}={wanted}")
        why, fix = choice.reason, f"unset {USERS_CHOICE}"
    else:
        found = route(master_addr, deadline_seconds)
        choice = InterfaceChoice(
            found.interface, f"{found.source} on the route to {master_addr} ({found.address})"
        )
        why = f"MASTER_ADDR {master_addr!r} is {found.address} on {socket.gethostname()}"
        fix = (
            "set MASTER_ADDR to an address that other nodes can reach (a 127.0.1.1 line in /etc/hosts may map the "
            "name to loopback)"
        )
    if several_nodes and any(is_loopback(address) for address in table[choice.interface]):
        raise UsageError(
            f"{why}, which is loopback ({choice.interface}), but the ranks are on several nodes: {fix}"
        )
    return choice


def route(master_addr: str, deadline_seconds: float = 0.0) -> Route:
    """The route from this host to `master_addr`. Raises UsageError if there is none."""
    address = resolve(master_addr, deadline_seconds)
    source = source_address(address)
    return Route(master_addr, address, source, interface_of(source, interfaces()))


def resolve(host: str, deadline_seconds: float = 0.0) -> str:
    """The address of `host`, IPv4 before IPv6. Retries until the deadline: a cluster's DNS may lag.

    Raises MeetingError if the name does not resolve in that time.
    """
    try:
        found = _retried(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM), deadline_seconds)
    except (OSError, UnicodeError) as error:
        raise MeetingError(
            f"MASTER_ADDR {host!r} does not resolve on {socket.gethostname()} ({error}), expected a name or "
            "address that every node can resolve: correct it, or check the cluster's DNS and /etc/hosts"
        ) from error
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def wait_for_port(host: str, port: int, deadline_seconds: float) -> None:
    """Return once the port accepts a connection. Raises MeetingError after the deadline."""
    end = time.monotonic() + deadline_seconds

    def connect() -> None:
        socket.create_connection((host, port), timeout=max(1.0, end - time.monotonic())).close()

    try:
        _retried(connect, deadline_seconds)
    except OSError as error:
        raise MeetingError(
            f"no process listens at {host}:{port} after {deadline_seconds:g} s ({error}), expected the launcher "
            "of the node where all nodes meet: check that it is running, and that this node can reach it"
        ) from error


def source_address(address: str) -> str:
    """This host's own address on the route to `address`. Sends nothing. Raises MeetingError without a route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise MeetingError(
                f"no route to MASTER_ADDR {address} from {socket.gethostname()} ({error}): "
                "connect the nodes by a network, or set MASTER_ADDR to an address on their common network"
            ) from error
        return str(probe.getsockname()[0])


def interfaces() -> dict[str, list[str]]:
    """All addresses of each interface: IPv4 before IPv6, the primary one first."""
    import psutil  # `plan` without a launcher does not need it

    found: dict[str, list[str]] = {}
    for label, entries in psutil.net_if_addrs().items():
        # A further address of eth0 may have the label eth0:1. A link-local address ends with %eth0.
        held = found.setdefault(label.partition(":")[0], [])
        held += [entry.address.partition("%")[0] for entry in entries if entry.family in _IP]
    return {name: sorted(held, key=lambda address: ":" in address) for name, held in found.items()}


def interface_of(address: str, table: Mapping[str, list[str]]) -> str:
    """The interface that has `address`. The loopback interface has all of 127.0.0.0/8."""
    for name, addresses in table.items():
        if address in addresses or (is_loopback(address) and any(is_loopback(other) for other in addresses)):
            return name
    raise UsageError(
        f"no interface has {address}, this host's address on the route to MASTER_ADDR (found {table}): "
        f"set {USERS_CHOICE} to the interface to use"
    )


def is_own(address: str) -> bool:
    """Whether `address` is one of this host's addresses, which may be a secondary one of an interface."""
    return is_loopback(address) or any(address in held for held in interfaces().values())


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _retried(attempt: Callable[[], T], deadline_seconds: float) -> T:
    """The result of `attempt`; after the deadline its OSError or UnicodeError."""
    end = time.monotonic() + deadline_seconds
    while True:
        try:
            return attempt()
        except (OSError, UnicodeError):
            if time.monotonic() + _RETRY_SECONDS > end:
                raise
            time.sleep(_RETRY_SECONDS)
