"""An engine with TLS: a real TLS server that checks its clients and serves a small part of the engine's API."""

import hashlib
import http.server
import io
import json
import os
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.errors import DockerException

from cpu_train_stack.cli.errors import UsageError
from tests import certificates
from tests.answers import answer, serving
from tooling.cluster import follow, nodes
from tooling.engine import find, podman
from tooling.engine.client import connect
from tooling.engine.failures import EngineLostError
from tooling.image import registry

ANSWERS = {
    "/version": {"ApiVersion": "1.45"},
    "/containers/json": [],
    "/images/stack:1/json": {"Id": "sha256:1"},
    "/info": {"ServerVersion": "26.1.5"},
}


class _Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/v1.45")
        answer(self, ANSWERS[path])

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls") / "certificates"
    certificates.make(made)
    return made


@pytest.fixture
def endpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The engine, chosen as the user does it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        address = f"tcp://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("DOCKER_HOST", address)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(folder))
        yield address


def test_every_connection_uses_the_users_certificate(endpoint: str, tmp_path: Path) -> None:
    assert nodes.read(endpoint) == []
    client = registry.Registry(endpoint, registry.Target("registry.example", "stack")).client
    assert client.version()
    assert client.images.get("stack:1").id == "sha256:1"
    with follow.following(endpoint, "project", tmp_path / "log", io.BytesIO()):
        pass


def test_an_engine_is_found_without_dockers_client_too(endpoint: str, folder: Path) -> None:
    environ = {"DOCKER_HOST": endpoint, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(folder)}
    found = find.find({"PATH": "/nonexistent", **environ})
    assert found.engine is not None, found.problem
    assert found.engine.version == "26.1.5"


def test_an_engine_with_a_certificate_of_another_authority_is_refused(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path / "others")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "others"))
    with pytest.raises(EngineLostError, match="certificate verify failed"):
        nodes.read(endpoint)


def test_missing_certificates_are_one_line(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"does not have ca\.pem, cert\.pem and key\.pem: set DOCKER_CERT_PATH"):
        nodes.read(endpoint)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize(
    ("by_variable", "files"),
    [(False, "ca.pem cert.pem key.pem"), (True, "ca.pem cert.pem key.pem"), (True, "cert.pem key.pem")],
    ids=["docker context use", "DOCKER_CONTEXT", "skip-tls-verify"],
)
def test_a_context_brings_its_own_certificates(
    endpoint: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool, files: str
) -> None:
    """As `docker context create` leaves it, which writes no config.json."""
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    if by_variable:
        monkeypatch.setenv("DOCKER_CONTEXT", "far")
    else:
        (tmp_path / "config.json").write_text('{"currentContext": "far"}')
    identifier = hashlib.sha256(b"far").hexdigest()
    certificate = tmp_path / "contexts" / "tls" / identifier / "docker"
    certificate.mkdir(parents=True)
    for name in files.split():
        shutil.copy(folder / name, certificate)
    described = tmp_path / "contexts" / "meta" / identifier / "meta.json"
    described.parent.mkdir(parents=True)
    engine = {"Host": endpoint, "SkipTLSVerify": "ca.pem" not in files}
    described.write_text(json.dumps({"Name": "far", "Metadata": {}, "Endpoints": {"docker": engine}}))
    assert nodes.read(endpoint) == []


def test_the_authority_is_dockers_and_not_that_of_other_programs(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make(tmp_path / "others")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "others" / "ca.pem"))
    assert nodes.read(endpoint) == []


def test_an_engine_behind_ssh_is_reached_with_the_users_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises((DockerException, OSError)):
        connect("ssh://me@host.invalid", timeout=5).version()
    assert "host.invalid" in (tmp_path / "called").read_text()


@pytest.mark.parametrize(
    ("address", "shown", "reason"),
    [
        ("tcp://host:port", "tcp://host:port", "Port could not be cast to integer value as 'port'"),
        ("tcp://host:99999", "tcp://host:99999", "Port out of range 0-65535"),
        ("ssh://me@host:abc", "ssh://host:abc", "Port could not be cast to integer value as 'abc'"),
        ("tcp://me:secret@[::1", "tcp://[::1", "Invalid IPv6 URL"),
    ],
)
def test_an_address_that_is_none_is_one_line_without_a_password(address: str, shown: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        connect(address, environ={})
    message = f"{shown} is not an address of an engine: {reason}: correct DOCKER_HOST, or the context"
    assert str(refused.value) == message
    found = find.find({"PATH": "/nonexistent", "DOCKER_HOST": address})
    assert (found.engine, found.problem) == (None, message)
    assert podman.answering(address) is None
