"""A node's clock against another's, over one TCP connection. Torch-free.

`doctor --serve` on rank 0's node greets whoever connects and answers each line with its time, so the measurement
is the one of NTP: half of the way there and back is the error. Whatever else listens at that port stays silent at
first, and is sent nothing: a running job's store must not be disturbed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import dataclass

from entrypoints.doctor.versions import PIN_VARIABLE
from entrypoints.errors import UsageError

GREETING = "cpu-train-stack-doctor"
ROUNDS = 8
# How long a server may take for a line. Its greeting is under way with the connection.
ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Reading:
    """`offset`: the other clock minus this one, in seconds, at most `error` off. `pin`: of the other's image."""

    offset: float
    error: float
    pin: str
    host: str


def measure(connection: socket.socket) -> Reading | None:
    """The quickest of ROUNDS answers is the most exact. None where no doctor answers. Raises OSError."""
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
    """Answers until the process is stopped. Raises UsageError where `port` cannot be had."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise UsageError(
            f"doctor: port {port} cannot be listened at ({error.strerror}), expected a free one: stop the job "
            "that uses it, or choose another with --master-port on every node"
        ) from error
    with listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    """One caller: a greeting, then the time for each line."""
    greeting = {GREETING: socket.gethostname(), "pin": os.environ.get(PIN_VARIABLE, "unknown")}
    try:
        with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
            connection.settimeout(ANSWER_SECONDS * ROUNDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.write(json.dumps(greeting) + "\n")
            stream.flush()
            while stream.readline(1000):
                stream.write(f"{time.time()!r}\n")
                stream.flush()
    except OSError:  # the caller has gone, which is how every call ends
        return
