"""A real registry: what is pushed is confirmed twice, and each way to fail is one line that leaves nothing."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import socket
import socketserver
import struct
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import containers, registry
from tooling import engine
from tooling.engine import Engine
from tooling.errors import USAGE_EXIT_CODE, UsageError
from tooling.registry import Registry, Target
from tooling.say import say

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def docker() -> Engine:
    return engine.ensure(say)


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    yield from _image(MEGABYTE // 10)


@pytest.fixture(scope="module")
def large() -> Iterator[str]:
    yield from _image(8 * MEGABYTE)


def _image(size: int) -> Iterator[str]:
    """The ID of an image of random bytes, which no compression makes smaller."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("random")
        entry.size = size
        tar.addfile(entry, io.BytesIO(os.urandom(size)))
    tag = f"{containers.unique_name()}:made"
    argv = ["docker", "import", "-", tag]
    made = subprocess.run(argv, input=archive.getvalue(), capture_output=True, check=True, timeout=60)
    identifier = made.stdout.decode().strip()
    yield identifier
    # By its ID: a push leaves the image with the digest that the registry gave it.
    subprocess.run(["docker", "image", "rm", "--force", identifier], capture_output=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with registry.running() as (address, _):
        yield address


def opened(docker: Engine, address: str) -> Registry:
    return Registry(docker.endpoint, Target.parse(f"{address}/team/stack"))


def fails(docker: Engine, address: str, image: str) -> str:
    """The one line of a push that fails; the local tag that it took is gone again."""
    with pytest.raises(UsageError) as caught:
        opened(docker, address).push(image, "1", say)
    assert caught.value.code == USAGE_EXIT_CODE
    assert "\n" not in str(caught.value)
    listed = subprocess.run(["docker", "image", "ls", f"{address}/team/stack"], capture_output=True, check=True)
    assert len(listed.stdout.splitlines()) == 1, "a local tag was left behind"
    return str(caught.value)


def test_a_push_gives_the_digest_that_the_registry_and_a_pull_confirm(
    docker: Engine, server: str, small: str
) -> None:
    repository = opened(docker, server)
    assert repository.digest("1") is None
    digest = repository.push(small, "1", say)
    assert digest.startswith("sha256:")
    assert repository.digest("1") == digest
    reference = repository.pull(digest, small)
    assert reference == f"{server}/team/stack@{digest}"
    with pytest.raises(UsageError, match="a pull gives the image"):
        repository.pull(digest, "sha256:" + "0" * 64)


def test_a_registry_that_wants_a_login_says_so_and_takes_it_from_dockers_own_store(
    docker: Engine, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry.running(login="me:s3cret") as (address, _):
        for password in ("", "wrong"):
            put_login(tmp_path, monkeypatch, address, f"me:{password}" if password else "")
            message = fails(docker, address, small)
            assert f"docker login {address}" in message
            assert "wrong" not in message
        put_login(tmp_path, monkeypatch, address, "me:s3cret")
        assert opened(docker, address).push(small, "1", say).startswith("sha256:")


def put_login(folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, login: str) -> None:
    """What `docker login` leaves where no credential helper is installed."""
    entry = {address: {"auth": base64.b64encode(login.encode()).decode()}} if login else {}
    (folder / "config.json").write_text(json.dumps({"auths": entry}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


def test_a_registry_without_tls_that_is_not_on_loopback_is_one_line(docker: Engine, small: str) -> None:
    with registry.running() as (_, name):
        argv = ["docker", "inspect", "--format", "{{.NetworkSettings.Networks.bridge.IPAddress}}", name]
        address = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        assert "it has no TLS: put it behind TLS" in fails(docker, f"{address}:5000", small)


def test_a_host_where_nothing_listens_is_one_line(docker: Engine, small: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "nothing listens there: check host and port" in fails(docker, f"127.0.0.1:{port}", small)


def test_a_name_that_does_not_resolve_is_one_line(docker: Engine, small: str) -> None:
    assert "check the name and the network" in fails(docker, "registry.invalid", small)


@contextmanager
def broken_after(size: int, address: str) -> Iterator[str]:
    """HOST:PORT of a way to `address` that carries `size` bytes and then nothing: every connection is reset."""
    left = size
    host, _, port = address.partition(":")

    class Way(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            nonlocal left
            with socket.create_connection((host, int(port))) as there:
                ends = {self.request: there, there: self.request}
                while left > 0:
                    for end in select.select(list(ends), [], [], 0.1)[0]:
                        data = end.recv(1 << 16)
                        if not data:
                            return
                        left -= len(data)
                        ends[end].sendall(data)
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Way) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        assert left <= 0, "the way was not broken: the push ended before"
        server.shutdown()


@pytest.mark.timeout(300)
def test_a_full_disk_and_a_network_that_breaks_are_one_line_after_the_engines_five_tries(
    docker: Engine, server: str, large: str
) -> None:
    """Both at once: the engine waits for more than a minute between its tries."""
    with (
        registry.running(megabytes=3) as (full, _),
        broken_after(2 * MEGABYTE, server) as broken,
        ThreadPoolExecutor() as both,
    ):
        disk = both.submit(fails, docker, full, large)
        network = both.submit(fails, docker, broken, large)
        assert "see whether its disk is full" in disk.result()
        assert "the connection broke" in network.result()
        assert opened(docker, full).digest("1") is None
