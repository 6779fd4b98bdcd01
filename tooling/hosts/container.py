"""The end and the output of a container on a host, even if Docker is stopped or restarted there.

A restart of Docker ends the containers, or leaves them running (live-restore). Either may break `docker wait` and
`docker logs`. Both are repeated until the container's state, read after Docker answers again, is an end.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from cpu_train_stack import contract
from tooling.engine.ssh import Remote, RemoteError
from tooling.hosts import commands

# Enough for a restart of Docker, or for an upgrade that leaves the containers running.
ENGINE_SECONDS = 120.0
POLL_SECONDS = 1.0
# Not "no such file", which is the message if the socket of a stopped Docker is missing.
_NO_CONTAINER = re.compile("no such (object|container)", re.IGNORECASE)
# The last line of `docker logs` if Docker stops.
_BROKEN = re.compile(rb"(unexpected EOF|error from daemon in stream: .*|Cannot connect to the Docker .*)\n\Z")


@dataclass(frozen=True)
class End:
    """The end of a container. `code` is None if the host or its Docker is lost."""

    host: str
    code: int | None
    how: str


@dataclass(frozen=True)
class State:
    """Docker's status (running, exited, ...), the exit code, and why the container could not be started.

    `out_of_memory`: the kernel killed at least one of its processes. `retried`: Docker did not answer at first.
    """

    status: str
    code: int = 0
    out_of_memory: bool = False
    error: str = ""
    retried: bool = False

    @property
    def ended(self) -> bool:
        return self.status in ("exited", "dead", "created")


def state(remote: Remote, container: str, timeout: float) -> State | None:
    """The container's state. None if Docker does not answer within `timeout` seconds.

    A container that was removed has the status "gone".
    """
    deadline = time.monotonic() + timeout
    retried = False
    while True:
        try:
            done = remote.run(commands.state(container))
        except RemoteError:
            done = None
        if done and done.code == 0:
            status, code, out_of_memory, *error = done.out.split(maxsplit=3)
            return State(status, int(code), out_of_memory == "true", "".join(error).strip(), retried)
        if done and _NO_CONTAINER.search(done.err):
            return State("gone", retried=retried)
        if time.monotonic() > deadline:
            return None
        retried = True
        time.sleep(POLL_SECONDS)


def wait(remote: Remote, container: str) -> End:
    """Wait for the end of the container, without a time limit."""
    restarted = False
    while True:
        # Each `docker wait` is short, so that state() notices if Docker hangs.
        printed = b"".join(remote.stream(commands.wait(container))).decode().strip()
        if printed.isdigit():
            return _end(remote, int(printed), state(remote, container, timeout=0.0), restarted)
        now = state(remote, container, ENGINE_SECONDS)
        if now is None:
            return End(remote.name, None, f"Docker has not answered for {ENGINE_SECONDS:.0f} s")
        if now.status == "gone":
            return End(remote.name, None, "its container was removed")
        restarted = restarted or now.retried
        if now.ended:
            return _end(remote, now.code, now, restarted)
        time.sleep(POLL_SECONDS)


def output(remote: Remote, container: str) -> Iterator[bytes]:
    """The output of the container until its end, without repetitions."""
    seen = 0
    while True:
        repeated, last = seen, b""  # `docker logs` always starts with the first byte
        for chunk in remote.stream(commands.logs(container)):
            new = chunk[repeated:]
            repeated -= len(chunk) - len(new)
            seen += len(new)
            last = (last + new)[-1000:]
            yield new
        if broken := _BROKEN.search(last):
            seen -= len(broken[0])
        now = state(remote, container, ENGINE_SECONDS)
        if now is None or now.status == "gone" or (now.ended and not now.retried):
            return
        time.sleep(POLL_SECONDS)


def _end(remote: Remote, code: int, found: State | None, restarted: bool) -> End:
    how = f"exited with code {code}"
    if found and found.out_of_memory:
        how = (
            "was killed: out of memory"
            if code == contract.KILLED_EXIT_CODE
            else f"{how}; one of its processes was killed earlier: out of memory"
        )
    if found is None or restarted:
        how += ", while Docker was stopped or restarted"
    return End(remote.name, code, f"{how}: {found.error}" if found and found.error else how)
