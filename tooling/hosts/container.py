"""The end and the output of a container on a host, even if Docker is stopped or restarted there.

A restart of Docker ends the containers, or leaves them running (live-restore). Either may break `docker wait` and
`docker logs`. Both are repeated until the container's state, read after Docker answers again, is an end.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cpu_train_stack.cli.files import parse_json
from tooling.cluster import follow, nodes
from tooling.cluster.nodes import GONE, Node
from tooling.engine.ssh import Remote, RemoteError
from tooling.engine.ssh_causes import shorten
from tooling.hosts import commands

# Enough for a restart of Docker, or for an upgrade that leaves the containers running.
ENGINE_SECONDS = 120.0
POLL_SECONDS = 1.0
# What `docker wait` prints: an exit code.
_CODE = re.compile(rb"\s*([0-9]{1,3})\s*")
_CODE_BYTES = 64
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


def state(remote: Remote, container: str, timeout: float) -> tuple[Node | None, bool]:
    """The container's state, and whether Docker did not answer at first.

    The state is None if Docker does not answer within `timeout` seconds. Raises RemoteError for any other answer.
    """
    deadline = time.monotonic() + timeout
    retried = False
    while True:
        try:
            done = remote.run(commands.state(container))
        except RemoteError:
            done = None
        if done and done.code == 0:
            return _state_of(remote.name, done.out), retried
        if done and _NO_CONTAINER.search(done.err):
            return Node(remote.name, status=GONE), retried
        if time.monotonic() > deadline:
            return None, True
        retried = True
        time.sleep(POLL_SECONDS)


def _state_of(host: str, answer: str) -> Node:
    try:
        return nodes.of_state(host, parse_json(answer))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RemoteError(
            f"docker inspect printed '{shorten(answer)}', expected a container's state: check Docker on the host"
        ) from None


def over(node: Node) -> bool:
    """Whether the container does not run, also because it was never started."""
    return not node.running or node.status == "created"


def wait(remote: Remote, container: str) -> End:
    """Wait for the end of the container, without a time limit."""
    restarted = False
    while True:
        # Each `docker wait` is short, so that state() notices if Docker hangs.
        code = _CODE.fullmatch(_first_bytes(remote, commands.wait(container)))
        node, retried = state(remote, container, 0.0 if code else ENGINE_SECONDS)
        if code:
            node = replace(node or Node(remote.name), status="exited", exit_code=int(code[1]))
        elif node is None:
            return End(remote.name, None, f"Docker has not answered for {ENGINE_SECONDS:.0f} s")
        elif node.status == GONE:
            return End(remote.name, None, "its container was removed")
        restarted = restarted or retried
        if over(node):
            how = node.describe_end() + (", while Docker was stopped or restarted" if restarted else "")
            return End(remote.name, node.exit_code, how)
        time.sleep(POLL_SECONDS)


def _first_bytes(remote: Remote, command: str) -> bytes:
    """The first bytes that `command` prints: a host may print without end."""
    printed = b""
    for chunk in remote.stream(command):
        printed += chunk
        if len(printed) > _CODE_BYTES:
            break
    return printed


def output(remote: Remote, container: str) -> Iterator[bytes]:
    """The output of the container until its end, without repetitions."""

    def goes_on() -> bool:
        try:
            node, retried = state(remote, container, ENGINE_SECONDS)
        except RemoteError:  # wait() reports it
            return False
        if node is None or node.status == GONE or (over(node) and not retried):
            return False
        time.sleep(POLL_SECONDS)
        return True

    return follow.unrepeated(lambda: remote.stream(commands.logs(container)), goes_on, _BROKEN)
