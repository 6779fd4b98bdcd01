"""The connection to rank 0's node: its name, interface, reachability, clock and pin. Torch-free."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from entrypoints import contract
from entrypoints.cli.errors import MeetingError, UsageError
from entrypoints.doctor import clock
from entrypoints.doctor.checks import Check, Status, refusal
from entrypoints.machine import network
from entrypoints.placement.detect import DistributedEnvironment

RESOLVE_SECONDS = 3.0
CONNECT_SECONDS = 5.0
# A larger offset makes logs of two nodes hard to compare. Training does not use other nodes' clocks.


@dataclass(frozen=True)
class Master:
    """Rank 0's node. `several_nodes`: other nodes have ranks, so loopback is not enough."""

    addr: str
    port: int
    several_nodes: bool


def interface(wanted: str, master: Master | None, table: Mapping[str, list[str]]) -> Check:
    """`wanted`: the user's choice. `table`: addresses by interface. Raises MeetingError for an invalid name."""
    if master is None and not wanted:
        shown = "; ".join(f"{name} {' '.join(addresses)}".strip() for name, addresses in table.items())
        return Check("interface", Status.OK, f"{shown}; none chosen, because no master is given (--master-addr)")
    addr, several_nodes = (master.addr, master.several_nodes) if master else ("", False)
    try:
        choice = network.choose(addr, several_nodes, wanted, RESOLVE_SECONDS, table)
    except MeetingError:
        raise
    except UsageError as error:
        return refusal("interface", error)
    if master and wanted:
        route = network.route(addr, RESOLVE_SECONDS)
        if route.interface != wanted:
            way = f"{route.interface} ({route.source})"
            detail = f"{choice.reason}, but the route to {addr} ({route.address}) is {way}"
            fix = f"unset {network.USERS_CHOICE}, unless all nodes meet on {wanted}"
            return Check("interface", Status.WARNING, detail, fix)
    return Check("interface", Status.OK, f"{choice.interface}: {choice.reason}")


def reach(master: Master) -> list[Check]:
    """Whether rank 0's node answers, and its doctor's answer. Raises UsageError for an invalid name."""
    address = network.resolve(master.addr, RESOLVE_SECONDS)
    where = f"{master.addr}:{master.port}"
    if network.is_loopback(address) or network.source_address(address) == address:
        return [Check("master", Status.OK, f"{master.addr} is this node")]
    try:
        connection = socket.create_connection((address, master.port), CONNECT_SECONDS)
    except ConnectionRefusedError:
        fix = "start `entrypoint doctor --serve` there first to test the port and compare the clocks"
        return [Check("master", Status.WARNING, f"{where} can be reached, but nothing listens there", fix)]
    except OSError as error:
        why = "no answer" if isinstance(error, (TimeoutError, socket.timeout)) else error.strerror or str(error)
        fix = "check MASTER_ADDR, that its node is running, and that firewalls allow this port"
        detail = f"{where} cannot be reached within {CONNECT_SECONDS:g} s: {why}"
        return [Check("master", Status.ERROR, detail, fix)]
    with connection:
        try:
            reading = clock.measure(connection)
        except OSError:
            reading = None
    if reading is None:
        fix = "start `entrypoint doctor --serve` there instead to compare the clocks"
        detail = "not measured: the listening process is not doctor --serve"
        return [Check("master", Status.OK, f"{where} answers"), Check("clock", Status.WARNING, detail, fix)]
    return [same_pin(reading, where, os.environ.get(contract.PIN, "unknown")), skew(reading)]


def same_pin(reading: clock.Reading, where: str, own: str) -> Check:
    if reading.pin != own:
        detail = f"{where} answers ({reading.host}), but with pin {reading.pin}, expected pin {own} as here"
        return Check("master", Status.ERROR, detail, "start the same image on every node")
    return Check("master", Status.OK, f"{where} answers ({reading.host}), pin {reading.pin} as here")


def skew(reading: clock.Reading) -> Check:
    """The clock's offset counts only where it is more than the measurement's own error."""
    detail = f"the master's clock is {reading.offset * 1e3:+.1f} ms off (measured to {reading.error * 1e3:.1f} ms)"
    if abs(reading.offset) - reading.error > contract.MAX_CLOCK_SKEW_SECONDS:
        return Check("clock", Status.WARNING, detail, "synchronize the nodes' clocks (chrony, systemd-timesyncd)")
    return Check("clock", Status.OK, detail)


def examine(master: Master | None, environ: Mapping[str, str]) -> list[Check]:
    table = network.interfaces()
    try:
        chosen = interface(environ.get(network.USERS_CHOICE, ""), master, table)
        if master is None:
            return [chosen]
        return [chosen, *reach(master)]
    except UsageError as error:
        return [refusal("master", error)]


def wanted_master(
    addr: str | None, port: int | None, environment: DistributedEnvironment, environ: Mapping[str, str]
) -> Master | None:
    """The master from the flags, else from the variables or the launcher; None if none of them names one.

    The flag implies several nodes: otherwise there is no connection to check.
    """
    named = addr or environ.get("MASTER_ADDR") or (environment.master_addr if environment.several_nodes else "")
    if not named:
        return None
    return Master(named, port or environment.master_port, bool(addr) or environment.several_nodes)
