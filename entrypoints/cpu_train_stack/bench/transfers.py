"""The hardware's transfers: memory copies by one core, and a TCP stream between two nodes. Torch-free."""

from __future__ import annotations

import select
import socket
import time

from cpu_train_stack.cli.errors import UsageError

BUFFER_BYTES = 1 << 20
# After this long without a byte, the stream has failed.
STALL_SECONDS = 20.0


class Copier:
    """A buffer of `size` bytes. All its pages are written first, so that the first copy uses real memory."""

    def __init__(self, size: int) -> None:
        self.copied = size // 2
        buffer = memoryview(bytearray(b"\1\2") * self.copied)
        self._source, self._target = buffer[: self.copied], buffer[self.copied :]

    def copy(self, times: int) -> float:
        """Copy one half onto the other `times` times, with the C library's memcpy. Returns the seconds."""
        started = time.perf_counter()
        for _ in range(times):
            self._target[:] = self._source
        return time.perf_counter() - started


class TransferStream:
    """One end of a TCP connection, with buffers of 1 MiB. The caller starts both ends of a transfer together.

    The kernel sizes its own buffers, as it does for libfabric and gloo.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._out = memoryview(bytearray(b"\1") * BUFFER_BYTES)
        self._in = memoryview(bytearray(b"\1") * BUFFER_BYTES)

    def transfer(self, send: int, receive: int) -> float:
        """Send and receive these numbers of bytes, at the same time. Returns the seconds.

        Raises UsageError if the stream stalls or the other end closes it.
        """
        started = time.perf_counter()
        while send or receive:
            readable, writable, _ = select.select(
                [self._connection] if receive else [], [self._connection] if send else [], [], STALL_SECONDS
            )
            if not readable and not writable:
                raise UsageError(
                    f"bench: the TCP stream between two nodes transferred nothing for {STALL_SECONDS:g} s: "
                    "check the network between the nodes"
                )
            if readable:
                received = self._connection.recv_into(self._in[: min(receive, BUFFER_BYTES)])
                if not received:
                    raise UsageError(
                        "bench: the other end of the TCP stream closed the connection: read the log of its rank"
                    )
                receive -= received
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


def accept(listener: socket.socket) -> TransferStream:
    """The listening end. Raises UsageError if no connection arrives."""
    with listener:
        try:
            return TransferStream(listener.accept()[0])
        except OSError as error:
            raise UsageError(
                f"bench: no TCP connection arrived at {listener.getsockname()[0]} ({error}): check firewalls"
            ) from error


def connect(address: str, port: int) -> TransferStream:
    """The connecting end. Raises UsageError if the address cannot be reached."""
    try:
        return TransferStream(socket.create_connection((address, port), timeout=STALL_SECONDS))
    except OSError as error:
        raise UsageError(f"bench: {address} port {port} cannot be reached ({error}): check firewalls") from error
