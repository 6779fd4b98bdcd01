"""A real registry: every push is confirmed twice, and every failure is one line and leaves nothing."""

import base64
import http.server
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tests import containers, registry, second_engine
from tests.answers import served
from tooling.engine import api
from tooling.engine import docker as docker_client
from tooling.engine.api import Engine
from tooling.image import base, build, inspect, push, recipe, sbom
from tooling.image import registry as image_registry
from tooling.image.inspect import Inventory
from tooling.image.registry import Registry, Target
from tooling.pins import parse, status

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def docker() -> Engine:
    return api.ensure()


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
        opened(docker, address).push(image, "fails")
    assert caught.value.exit_code == contract.USAGE_EXIT_CODE
    assert "\n" not in str(caught.value)
    listed = subprocess.run(["docker", "image", "ls", f"{address}/team/stack"], capture_output=True, check=True)
    assert len(listed.stdout.splitlines()) == 1, "a local tag was left behind"
    return str(caught.value)


def fails_to_pull(address: str) -> str:
    """The one line of a base image's pull that is not taken for a registry that is not there."""
    with pytest.raises(UsageError) as caught:
        base.pull(f"{address}/team/stack@sha256:{'0' * 64}", silence_seconds=60)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_push_gives_the_digest_that_the_registry_and_a_pull_confirm(
    docker: Engine, server: str, small: str
) -> None:
    repository = opened(docker, server)
    assert repository.digest("1") is None
    digest = repository.push(small, "1")
    assert digest.startswith("sha256:")
    assert repository.digest("1") == digest
    reference = repository.pull(digest, small)
    assert reference == f"{server}/team/stack@{digest}"
    with pytest.raises(UsageError, match="a pull returned the image"):
        repository.pull(digest, "sha256:" + "0" * 64)


def test_a_registrys_login_is_requested_and_read_from_dockers_store(
    docker: Engine, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry.running(login="me:s3cret") as (address, _):
        for password in ("", "wrong"):
            put_login(tmp_path, monkeypatch, address, f"me:{password}" if password else "")
            message = fails(docker, address, small)
            assert f"docker login {address}" in message
            assert "wrong" not in message
            assert "docker login" in fails_to_pull(address)
        put_login(tmp_path, monkeypatch, address, "me:s3cret")
        assert opened(docker, address).push(small, "1").startswith("sha256:")


def put_login(folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, login: str) -> None:
    """What `docker login` leaves where no credential helper is installed."""
    entry = {address: {"auth": base64.b64encode(login.encode()).decode()}} if login else {}
    (folder / "config.json").write_text(json.dumps({"auths": entry}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


def test_a_registry_without_tls_that_is_not_on_loopback_is_one_line(docker: Engine, small: str) -> None:
    with registry.running() as (_, name):
        argv = ["docker", "inspect", "--format", "{{.NetworkSettings.Networks.bridge.IPAddress}}", name]
        address = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        assert "the registry has no TLS: enable TLS" in fails(docker, f"{address}:5000", small)


def test_a_host_where_nothing_listens_is_one_line(docker: Engine, small: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "nothing listens there: check host and port" in fails(docker, f"127.0.0.1:{port}", small)


def test_a_name_that_does_not_resolve_is_one_line(docker: Engine, small: str) -> None:
    assert "check the name and the network" in fails(docker, "registry.invalid", small)


def test_a_pull_rate_limit_is_not_reported_as_a_missing_registry() -> None:
    class Limited(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = {"code": "TOOMANYREQUESTS", "message": "You have reached your pull rate limit."}
            body = json.dumps({"errors": [said]}).encode() if "manifests" in self.path else b"{}"
            self.send_response(429 if "manifests" in self.path else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    with served(Limited) as address:
        message = fails_to_pull(address)
    assert "You have reached your pull rate limit" in message
    assert message.endswith("wait, or run docker login")


def test_a_full_disk_during_a_pull_is_not_reported_as_a_missing_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with second_engine.running(tmp_path, data_megabytes=8) as full:
        assert full.process is not None
        inside = ["nsenter", f"--net=/proc/{full.process.pid}/ns/net"]
        script = Path(__file__).parent / "scripts" / "one_image_registry.py"
        argv = [*inside, sys.executable, str(script), "16"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                assert server.stdout is not None
                reference = server.stdout.readline().strip()
                monkeypatch.setenv("DOCKER_HOST", f"unix://{full.socket}")
                with pytest.raises(UsageError) as caught:
                    base.pull(reference, silence_seconds=60)
            finally:
                server.kill()
    assert "no space left on device: Docker's disk is full" in str(caught.value)


def test_a_push_during_the_checks_is_not_overwritten(
    docker: Engine, server: str, small: str, large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of an image take a minute and more; of them only the time is real here."""
    revision = "0123456789abcdef"
    tag = push.tag_of(parse.load().pin().name, revision)
    others: list[str] = []

    def inventory(_image: str) -> Inventory:
        others.append(opened(docker, server).push(small, tag))
        return Inventory(parse.load().pin().name, "", "", (), ())

    for module, name, value in (
        (push, "clean_revision", revision),
        (build, "build", build.Image("made", large, 8 * MEGABYTE, False, 0.0)),
        (inspect, "content_sha256", "0" * 64),
        (inspect, "doctor", []),
        (inspect, "mismatch", None),
        (status, "is_tested", True),
        (
            docker_client,
            "read_image",
            docker_client.LocalImage("made", 1, {recipe.REVISION_LABEL: revision}, (), {}),
        ),
        (sbom, "document", "{}"),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(inspect, "inventory", inventory)
    with pytest.raises(UsageError, match=r"already exists .*: this tag is never overwritten"):
        push.run(f"{server}/team/stack", parse.load().pin(), alias=False, output=str(tmp_path))
    assert opened(docker, server).digest(tag) == others[0]
    assert list(tmp_path.iterdir()) == []


def test_a_push_while_layers_are_sent_is_not_overwritten(
    docker: Engine, server: str, small: str, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = threading.Event()
    monkeypatch.setattr(image_registry, "say", lambda _line: sending.set())
    with registry.relayed(server, lambda _size: time.sleep(0.05)) as slow, ThreadPoolExecutor() as both:
        pushing = both.submit(opened(docker, slow).push, large, "during")
        assert sending.wait(60), "nothing was sent"
        other = opened(docker, server).push(small, "during")
        with pytest.raises(UsageError, match="already exists"):
            pushing.result()
    time.sleep(2)  # what the engine would do after all
    assert opened(docker, server).digest("during") == other


def test_of_two_pushes_of_one_tag_at_most_one_succeeds(
    docker: Engine, server: str, small: str, large: str
) -> None:
    with ThreadPoolExecutor() as both:
        pushes = [both.submit(opened(docker, server).push, image, "at-once") for image in (small, large)]
    pushed = [one.result() for one in pushes if one.exception() is None]
    assert {type(one.exception()) for one in pushes} - {type(None)} == {UsageError}
    assert pushed in ([], [opened(docker, server).digest("at-once")])


@pytest.mark.timeout(300)
def test_a_full_disk_and_a_network_that_breaks_are_one_line_after_the_engines_five_tries(
    docker: Engine, large: str
) -> None:
    """Both at once: the engine waits for more than a minute between its tries."""
    with (
        registry.running(megabytes=3) as (full, _),
        registry.running() as (sound, _),  # that has none of the layers
        registry.broken_after(2 * MEGABYTE, sound) as broken,
        ThreadPoolExecutor() as both,
    ):
        disk = both.submit(fails, docker, full, large)
        network = both.submit(fails, docker, broken, large)
        assert "check its disk and its log" in disk.result()
        assert "the connection broke" in network.result()
        assert opened(docker, full).digest("fails") is None
