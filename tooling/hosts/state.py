"""A job's container on its host, also while Docker is stopped or restarted there.

A restart of Docker ends containers, or leaves them running (live-restore). Either way, it may break `docker wait`
and `docker logs`: the container's state is only known when Docker answers again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from entrypoints import contract
from tooling.hosts import commands
from tooling.hosts.remote import Remote, RemoteError

# Enough for a restart, or for an upgrade that leaves the containers running.
ENGINE_SECONDS = 120.0
ASK_SECONDS = 1.0
_NO_CONTAINER = "no such"
# The last line of `docker logs` itself when Docker stops.
_BROKEN = re.compile(rb"(unexpected EOF|error from daemon in stream: .*|Cannot connect to the Docker .*)\n\Z")


@dataclass(frozen=True)
class End:
    """A container that ended, or one that is lost (`code` None)."""

    host: str
    code: int | None
    how: str


@dataclass(frozen=True)
class State:
    """The engine's status (running, exited, ...), the exit code, and why the container could not be started.

    `out_of_memory`: the kernel killed at least one of its processes. `away`: Docker did not answer at first.
    """

    status: str
    code: int = 0
    out_of_memory: bool = False
    error: str = ""
    away: bool = False

    @property
    def ended(self) -> bool:
        return self.status in ("exited", "dead", "created")


def ask(remote: Remote, container: str, patience: float) -> State | None:
    """The container's state, as soon as Docker answers; None if Docker does not answer within `patience` seconds.

    A container that was removed has the status "gone".
    """
    deadline = time.monotonic() + patience
    away = False
    while True:
        try:
            done = remote.run(commands.state(container))
        except RemoteError:
            done = None
        if done and done.code == 0:
            status, code, out_of_memory, *error = done.out.split(maxsplit=3)
            return State(status, int(code), out_of_memory == "true", "".join(error).strip(), away)
        if done and _NO_CONTAINER in done.err.lower():
            return State("gone", away=away)
        if time.monotonic() > deadline:
            return None
        away = True
        time.sleep(ASK_SECONDS)


def until_end(remote: Remote, container: str) -> End:
    """Waits without a limit until the container has ended."""
    restarted = False
    while True:
        # Each `docker wait` is short, so that `ask` notices a Docker that hangs.
        printed = b"".join(remote.stream(commands.wait(container))).decode().strip()
        if printed.isdigit():
            return _end(remote, int(printed), ask(remote, container, patience=0.0), restarted)
        state = ask(remote, container, ENGINE_SECONDS)
        if state is None:
            return End(remote.name, None, f"Docker has not answered for {ENGINE_SECONDS:.0f} s")
        if state.status == "gone":
            return End(remote.name, None, "its container was removed")
        restarted = restarted or state.away
        if state.ended:
            return _end(remote, state.code, state, restarted)
        time.sleep(ASK_SECONDS)


def output(remote: Remote, container: str) -> Iterator[bytes]:
    """What the container prints, each byte once, until it has ended."""
    seen = 0
    while True:
        repeated, last = seen, b""  # docker logs starts from the first byte
        for chunk in remote.stream(commands.logs(container)):
            new = chunk[repeated:]
            repeated -= len(chunk) - len(new)
            seen += len(new)
            last = (last + new)[-1000:]
            yield new
        if broken := _BROKEN.search(last):
            seen -= len(broken[0])
        state = ask(remote, container, ENGINE_SECONDS)
        if state is None or state.status == "gone" or (state.ended and not state.away):
            return
        time.sleep(ASK_SECONDS)


def _end(remote: Remote, code: int, state: State | None, restarted: bool) -> End:
    how = f"exited with code {code}"
    if state and state.out_of_memory:
        how = (
            "was killed: out of memory"
            if code == contract.KILLED_EXIT_CODE
            else f"{how}; one of its processes was killed earlier: out of memory"
        )
    if state is None or restarted:
        how += ", while Docker was stopped or restarted"
    return End(remote.name, code, f"{how}: {state.error}" if state and state.error else how)
