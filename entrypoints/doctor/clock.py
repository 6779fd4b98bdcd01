"""The clock offset between two nodes, over one TCP connection. Torch-free.

`doctor --serve` on rank 0's node greets each client and answers each line with its time. As in NTP, half of the
round trip is the error. Nothing is sent to a server that does not greet first: a running job's store must not be
disturbed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import dataclass

from entrypoints import contract
from entrypoints.cli.errors import UsageError

GREETING = "cpu-train-stack-doctor"
ROUNDS = 8
# The time limit for each line from the server.
ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Reading:
    """`offset`: the other clock minus this clock, in seconds, within `error`. `pin`: that of the other image."""

    offset: float
    error: float
    pin: str
    host: str


def measure(connection: socket.socket) -> Reading | None:
    """The reading of the fastest of ROUNDS answers. None if no doctor answers. Raises OSError."""
    connection.settimeout(ANSWER_SECONDS)
    with connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
        try:
            greeting = json.loads(stream.readline(1000))
            if GREETING not in greeting:
                return None
            best: tuple[float, float] | None = None
            for _ in range(ROUNDS):
                began = time.time()
                stream.write("\n")
                stream.flush()
                theirs = float(stream.readline(1000))
                ended = time.time()
                error = (ended - began) / 2
                if best is None or error < best[1]:
                    best = (theirs - (began + ended) / 2, error)
        except (TimeoutError, socket.timeout, ValueError, TypeError):  # two types until Python 3.10
            return None
    return Reading(*best, pin=str(greeting["pin"]), host=str(greeting[GREETING])) if best else None


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
    """Serve one client: a greeting, then the time for each line."""
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
    except OSError:  # the client has disconnected: every call ends like this
        return
