"""A TCP stream between two ranks on different nodes: what the network and the kernel carry, one way and both.

Plain sockets, one connection, buffers of a megabyte; the kernel sizes its own buffers, as it does for libfabric
and gloo. Torch-free.
"""

from __future__ import annotations

import select
import socket
import time

from entrypoints.cli.errors import UsageError

BUFFER_BYTES = 1 << 20
# A stream that moves nothing for so long is not going to.
STALL_SECONDS = 20.0


class Stream:
    """One end of the connection. The caller starts both ends of a transfer at the same time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._out = memoryview(bytearray(b"\1") * BUFFER_BYTES)
        self._into = memoryview(bytearray(b"\1") * BUFFER_BYTES)

    def transfer(self, send: int, receive: int) -> float:
        """Seconds to send and receive so many bytes, both at once. Raises UsageError where the stream stalls."""
        started = time.perf_counter()
        while send or receive:
            readable, writable, _ = select.select(
                [self._connection] if receive else [], [self._connection] if send else [], [], STALL_SECONDS
            )
            if not readable and not writable:
                raise UsageError(
                    f"bench: the TCP stream between two nodes moved nothing for {STALL_SECONDS:g} s: "
                    "check the network between them"
                )
            if readable:
                came = self._connection.recv_into(self._into[: min(receive, BUFFER_BYTES)])
                if not came:
                    raise UsageError(
                        "bench: the other end of the TCP stream has closed it: see why its rank ended"
                    )
                receive -= came
            if writable:
                send -= self._connection.send(self._out[: min(send, BUFFER_BYTES)])
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()


def listen(address: str) -> socket.socket:
    """A socket that waits for one connection, on any free port of `address`, for STALL_SECONDS."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=1)
    listener.settimeout(STALL_SECONDS)
    return listener


def accept(listener: socket.socket) -> Stream:
    """The end that listened. Raises UsageError where nobody comes."""
    with listener:
        try:
            return Stream(listener.accept()[0])
        except OSError as error:
            raise UsageError(
                f"bench: no TCP connection came to {listener.getsockname()[0]} ({error}): check firewalls"
            ) from error


def connect(address: str, port: int) -> Stream:
    """The other end. Raises UsageError where it cannot be reached."""
    try:
        return Stream(socket.create_connection((address, port), timeout=STALL_SECONDS))
    except OSError as error:
        raise UsageError(f"bench: {address} port {port} cannot be reached ({error}): check firewalls") from error
