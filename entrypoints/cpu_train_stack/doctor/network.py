"""The connection to rank 0's node: its name, interface, reachability, clock and pin. Torch-free.

`doctor --serve` on rank 0's node greets each client and answers each line with its time. As in NTP, half of the
round trip is the error. A client sends nothing to a server that does not greet first, because the server may be
the store of a running job.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cpu_train_stack import contract
from cpu_train_stack.cli.checks import Check, CheckStatus, refusal
from cpu_train_stack.cli.errors import MeetingError, UsageError
from cpu_train_stack.cli.files import parse_json
from cpu_train_stack.machine import network
from cpu_train_stack.placement.detect import DistributedEnvironment

RESOLVE_SECONDS = 3.0
CONNECT_SECONDS = 5.0
GREETING = "cpu-train-stack-doctor"
ROUNDS = 8
# The time limit for each line from the server.
ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Master:
    """Rank 0's node. `several_nodes`: other nodes have ranks, so loopback is not enough."""

    addr: str
    port: int
    several_nodes: bool


@dataclass(frozen=True)
class Reading:
    """`offset`: the other clock minus this clock, in seconds, within `error`. `pin`, `host`: of the other node."""

    offset: float
    error: float
    pin: str
    host: str


def wanted_master(
    addr: str | None, port: int | None, environment: DistributedEnvironment, environ: Mapping[str, str]
) -> Master | None:
    """The master of the flag, the variable or the launcher, in this order; None if all are missing.

    The flag implies several nodes: with one node, there is no connection to check.
    """
    named = addr or environ.get("MASTER_ADDR") or (environment.master_addr if environment.several_nodes else "")
    if not named:
        return None
    return Master(named, port or environment.master_port, bool(addr) or environment.several_nodes)


def examine_network(master: Master | None, environ: Mapping[str, str]) -> list[Check]:
    table = network.interfaces()
    try:
        chosen = interface(environ.get(network.USERS_CHOICE, ""), master, table)
        if master is None:
            return [chosen]
        return [chosen, *reach(master)]
    except UsageError as error:
        return [refusal("master", error)]


def interface(wanted: str, master: Master | None, table: Mapping[str, list[str]]) -> Check:
    """`wanted`: the user's choice. `table`: addresses by interface. Raises MeetingError for an invalid name."""
    if master is None and not wanted:
        shown = "; ".join(f"{name} {' '.join(addresses)}".strip() for name, addresses in table.items())
        return Check("interface", CheckStatus.OK, f"{shown}; none chosen: no master is given (--master-addr)")
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
            return Check("interface", CheckStatus.WARNING, detail, fix)
    return Check("interface", CheckStatus.OK, f"{choice.interface}: {choice.reason}")


def reach(master: Master) -> list[Check]:
    """Connect to rank 0's node, and compare pin and clock with its doctor. Raises UsageError."""
    address = network.resolve(master.addr, RESOLVE_SECONDS)
    where = f"{master.addr}:{master.port}"
    if network.is_own(address):
        return [Check("master", CheckStatus.OK, f"{master.addr} is this node")]
    try:
        connection = socket.create_connection((address, master.port), CONNECT_SECONDS)
    except ConnectionRefusedError:
        fix = "start `entrypoint doctor --serve` there first to test the port and compare the clocks"
        return [Check("master", CheckStatus.WARNING, f"{where} can be reached, but nothing listens there", fix)]
    except OSError as error:
        why = "no response" if isinstance(error, (TimeoutError, socket.timeout)) else error.strerror or str(error)
        fix = "check MASTER_ADDR, that its node is running, and that firewalls allow this port"
        detail = f"{where} cannot be reached within {CONNECT_SECONDS:g} s: {why}"
        return [Check("master", CheckStatus.ERROR, detail, fix)]
    with connection:
        try:
            reading = measure_clock(connection)
        except OSError:
            reading = None
    if reading is None:
        fix = "start `entrypoint doctor --serve` there instead to compare the clocks"
        detail = "not measured: the listening process is not doctor --serve"
        return [
            Check("master", CheckStatus.OK, f"{where} answers"),
            Check("clock", CheckStatus.WARNING, detail, fix),
        ]
    return [same_pin(reading, where, os.environ.get(contract.PIN, "unknown")), skew(reading)]


def same_pin(reading: Reading, where: str, own: str) -> Check:
    if reading.pin != own:
        detail = f"{where} answers ({reading.host}), but with pin {reading.pin}, expected pin {own} as here"
        return Check("master", CheckStatus.ERROR, detail, "start the same image on every node")
    return Check("master", CheckStatus.OK, f"{where} answers ({reading.host}), pin {reading.pin} as here")


def skew(reading: Reading) -> Check:
    """Judge the clock's offset beyond the measurement's own error.

    A larger offset makes logs of two nodes hard to compare. Training does not use other nodes' clocks.
    """
    detail = f"the master's clock is {reading.offset * 1e3:+.1f} ms off (measured to {reading.error * 1e3:.1f} ms)"
    if abs(reading.offset) - reading.error > contract.MAX_CLOCK_SKEW_SECONDS:
        return Check(
            "clock", CheckStatus.WARNING, detail, "synchronize the nodes' clocks (chrony, systemd-timesyncd)"
        )
    return Check("clock", CheckStatus.OK, detail)


def measure_clock(connection: socket.socket) -> Reading | None:
    """The reading of the fastest of ROUNDS answers. None if no doctor answers. Raises OSError."""
    connection.settimeout(ANSWER_SECONDS)
    with connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
        try:
            greeting = parse_json(stream.readline(1000))
            host, pin = str(greeting[GREETING]), str(greeting["pin"])
            best: tuple[float, float] | None = None
            for _ in range(ROUNDS):
                began = time.time()
                stream.write("\n")
                stream.flush()
                theirs = float(stream.readline(1000))
                if not math.isfinite(theirs):  # never too far off
                    return None
                ended = time.time()
                error = (ended - began) / 2
                if best is None or error < best[1]:
                    best = (theirs - (began + ended) / 2, error)
        except (TimeoutError, socket.timeout, ValueError, TypeError, LookupError):  # two types until Python 3.10
            return None
    return Reading(*best, pin=pin, host=host) if best else None


def serve(port: int) -> None:
    """Answer until the process is stopped. Raises UsageError if `port` is not available."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise UsageError(
            f"doctor: cannot listen on port {port} ({error.strerror}), expected a free port: stop the job "
            "that uses it, or choose another port with --master-port on every node"
        ) from error
    with listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    """Serve a client: a greeting, then the time for each line."""
    greeting = {GREETING: socket.gethostname(), "pin": os.environ.get(contract.PIN, "unknown")}
    try:
        with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
            connection.settimeout(ANSWER_SECONDS * ROUNDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.write(json.dumps(greeting) + "\n")
            stream.flush()
            while stream.readline(1000):
                stream.write(f"{time.time()!r}\n")
                stream.flush()
    except (OSError, ValueError):  # the client has disconnected, which ends every call, or is no doctor
        return
