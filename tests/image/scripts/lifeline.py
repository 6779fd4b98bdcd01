"""Runs in every rank of ccl: cases of a group's lifeline, with the connection that detects dead ranks disturbed.

Usage: lifeline.py CASE...: prints a JSON report of each case, on each rank. A wrapper around the group's store
intercepts the address that a rank publishes and the address that a rank reads.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import oneccl_bindings_for_pytorch as package
import torch
import torch.distributed as dist
from cases import Wrapped

RANK = dist.get_rank()
FDS = Path("/proc/self/fd")


class Case:
    """The running case: its report, its reactions to keys of the store, and the sockets from before it."""

    def __init__(self, name: str) -> None:
        self.report: dict[str, Any] = {"case": name, "rank": RANK}
        self.on_address: Callable[[bytes], None] = lambda _: None
        self.on_connected: Callable[[], None] = lambda: None
        self.on_read: Callable[[bytes], bytes] = lambda value: value
        self.before: set[tuple[str, str]] = set()


case = Case("")
# Connections that stay open until the process ends.
clients: list[socket.socket] = []
forged: list[socket.socket] = []


class Watched(Wrapped):
    def set(self, key: str, value: bytes) -> None:
        super().set(key, value)
        if key.endswith(f"ccl/lifeline/address/{RANK}"):
            case.on_address(value)
        if key.endswith(f"ccl/lifeline/connected/{RANK}"):
            case.on_connected()

    def get(self, key: str) -> bytes:
        value = super().get(key)
        return case.on_read(value) if key.endswith(f"ccl/lifeline/address/{1 - RANK}") else value


def create_group(seconds: int = 1500) -> Any:
    begin = time.monotonic()
    group = dist.new_group(backend="ccl", timeout=timedelta(seconds=seconds))
    case.report["seconds"] = time.monotonic() - begin
    return group


def use(group: Any, late: float) -> None:
    """If a rank is considered dead, a call that takes longer than two seconds raises."""
    if RANK == 1:
        time.sleep(late)
    begin = time.monotonic()
    try:
        number = torch.ones(1000)
        dist.all_reduce(number, group=group)
        case.report["sum"] = number[0].item()
    except RuntimeError as error:
        case.report["error"] = str(error).splitlines()[0]
    case.report["used"] = time.monotonic() - begin


def parse(value: bytes) -> tuple[tuple[str, int], str]:
    host, port, tokens = bytes(value).decode().split()
    return (host, int(port)), tokens


def connect_clients(value: bytes) -> None:
    """The clients that send nothing connect first."""
    limit = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    address, _ = parse(value)
    for _ in range(1100):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(address)
        clients.append(client)
    time.sleep(0.3)
    for number, client in enumerate(clients[100:]):
        with suppress(OSError):
            client.send(b"GET / HTTP/1.1" if number % 2 else b"0123456789abcdef" * 8)


def freeze(_: bytes) -> None:
    subprocess.Popen(["sh", "-c", f"sleep 10; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def proxied(value: bytes) -> bytes:
    """The address of a proxy for one connection to the address in `value`."""
    target, tokens = parse(value)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        near, far = listener.accept()[0], socket.create_connection(target)
        forged.append(far)
        while True:
            for ready in select.select([near, far], [], [])[0]:
                data = ready.recv(4096)
                if not data:
                    near.close()
                    far.close()
                    return
                (far if ready is near else near).sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1 {listener.getsockname()[1]} {tokens}".encode()


def sockets() -> set[tuple[str, str]]:
    found = set()
    for fd in FDS.iterdir():
        with suppress(OSError):  # already closed
            found.add((fd.name, str(fd.readlink())))
    return {(fd, name) for fd, name in found if "socket:" in name or "eventfd" in name}


def fork() -> None:
    case.report["opened"] = len(sockets() - case.before)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(len(sockets() - case.before)).encode())
        os._exit(0)
    case.report["inherited"] = int(os.read(reader, 100))


def options() -> Iterator[tuple[int, ...]]:
    """The options of each TCP socket of this process that say when a host is unreachable."""
    names = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    for fd in FDS.iterdir():
        with suppress(OSError):  # not a TCP socket
            one = socket.socket(fileno=os.dup(int(fd.name)))
            yield tuple(one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)


def attack() -> None:
    case.on_address = connect_clients
    group = create_group()
    dist.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    use(group, 0)


def frozen() -> None:
    def read_late(value: bytes) -> bytes:
        time.sleep(1)
        return value

    if RANK == 1:
        case.on_address = freeze
    else:
        case.on_read = read_late
    use(create_group(16), 4)


def refused() -> None:
    if RANK == 0:
        case.on_read = lambda value: f"127.0.0.1 1 {parse(value)[1]}".encode()
    use(create_group(), 4)


def forge(message: bytes) -> None:
    if RANK == 0:
        case.on_read = proxied
    group = create_group()
    dist.barrier()
    if RANK == 0:
        forged[-1].sendall(message * 3)
    use(group, 4)


def rank() -> None:
    forge(struct.pack("<BIQ", 0, 1000, 0))


def kind() -> None:
    forge(b"\xff" * 13)


def forked() -> None:
    case.on_connected = fork
    case.before = sockets()
    use(create_group(), 0)


def seconds() -> None:
    for value in ("2", "4", "3600", "1", "3601", "4.5", "ten", ""):
        os.environ["CPU_TRAIN_STACK_UNREACHABLE_SECONDS"] = value
        try:
            create_group()
            case.report[value] = sorted(set(options()))
        except ValueError as error:
            case.report[value] = str(error)
    dist.barrier()  # rank 0 serves the store: it must not exit first


def abort() -> None:
    group = create_group()
    dist.barrier()
    if RANK == 2:
        time.sleep(1)
        group._get_backend(torch.device("cpu")).abort()
    else:
        use(group, 0)
    dist.barrier()  # of another group: all ranks are alive


def left() -> None:
    """The neighbours of rank 0 leave two groups. Then rank 3 leaves the first group, and is killed."""
    groups = create_group(25), create_group(25)
    dist.barrier()
    if RANK in (1, 4):
        for group in groups:
            dist.destroy_process_group(group)
    dist.barrier()
    if RANK == 3:
        dist.destroy_process_group(groups[0])
    if RANK == 0:
        receive_from_3("left", groups[0])
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if RANK == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if RANK == 0:
        receive_from_3("killed", groups[1])
        store.set("received", "")
        time.sleep(2)  # rank 0 serves the store: it must not exit first
    store.wait(["received"], timedelta(seconds=60))


def receive_from_3(name: str, group: Any) -> None:
    """Report what a receive raises, and after how long."""
    begin = time.monotonic()
    try:
        dist.recv(torch.ones(1), 3, group=group)
    except RuntimeError as error:
        case.report[name] = str(error).splitlines()[0], time.monotonic() - begin


CASES = {
    function.__name__: function for function in (attack, frozen, refused, rank, kind, forked, seconds, abort, left)
}

if __name__ == "__main__":
    create = package.create
    package.create = lambda store, **given: create(store=Watched(store), **given)
    for name in sys.argv[1:]:
        case = Case(name)
        CASES[name]()
        print(json.dumps(case.report) + "\n", end="", flush=True)
    os._exit(0)
