"""Debian's docker-registry in a container on loopback, and relays that slow or break a push to it."""

import select
import socket
import socketserver
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests import containers
from tests.answers import serving
from tooling.basis.identity import IDENTITY

IMAGE = f"cpu-train-stack-test-registry:{IDENTITY}"
# apache2-utils has htpasswd, without which a registry knows nobody.
DOCKERFILE = """\
FROM {base}
RUN apt-get update -q && \\
    apt-get install -q -y --no-install-recommends apache2-utils docker-registry && \\
    apt-get clean && rm -rf /var/lib/apt/lists/*
"""
SCRIPT = """\
set -e
auth=
if [ -n "$LOGIN" ]; then
    htpasswd -Bbc /tmp/users "${LOGIN%:*}" "${LOGIN#*:}"
    auth='auth: {htpasswd: {realm: test, path: /tmp/users}}'
fi
{ echo 'version: 0.1'
  echo 'storage: {filesystem: {rootdirectory: /data}}'
  echo 'http: {addr: ":5000"}'
  echo "$auth"; } > /tmp/c
exec docker-registry serve /tmp/c
"""


@contextmanager
def running(megabytes: int | None = None, login: str = "") -> Iterator[tuple[str, str]]:
    """A registry, in memory of a certain size or on disk, with or without a user NAME:PASSWORD.

    Gives HOST:PORT on loopback and the container's name.
    """
    name = containers.unique_name()
    disk: Sequence[str] = [] if megabytes is None else ["--tmpfs", f"/data:size={megabytes}m"]
    containers.build(IMAGE, DOCKERFILE)
    argv = ["docker", "run", "--detach", "--name", name, "--publish", "127.0.0.1::5000", *disk]
    argv += ["--env", f"LOGIN={login}", IMAGE, "sh", "-c", SCRIPT]
    subprocess.run(argv, capture_output=True, check=True, timeout=60)
    try:
        ask = ["docker", "port", name, "5000"]
        address = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
        _wait(address)
        yield address, name
    finally:
        subprocess.run(
            ["docker", "rm", "--force", "--volumes", name], capture_output=True, check=False, timeout=60
        )


def _wait(address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
        except urllib.error.HTTPError:  # it answers, if only that it wants a login
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


@contextmanager
def relayed(address: str, carry: Callable[[int], None]) -> Iterator[str]:
    """HOST:PORT of a relay to `address`, which calls `carry` with the size of each piece.

    A ConnectionError of `carry` resets the connection.
    """
    host, _, port = address.partition(":")

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as there:
                ends = {self.request: there, there: self.request}
                try:
                    while True:
                        for end in select.select(list(ends), [], [])[0]:
                            data = end.recv(1 << 16)
                            if not data:
                                return
                            carry(len(data))
                            ends[end].sendall(data)
                except ConnectionError:
                    self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay)
    server.daemon_threads = True
    with serving(server):
        yield f"127.0.0.1:{server.server_address[1]}"


@contextmanager
def broken_after(size: int, address: str) -> Iterator[str]:
    """HOST:PORT of a relay to `address` that resets every connection after `size` bytes."""
    left = size

    def carry(count: int) -> None:
        nonlocal left
        left -= count
        if left <= 0:
            raise ConnectionResetError

    with relayed(address, carry) as broken:
        yield broken
        assert left <= 0, "the relay did not break: the push ended before"
