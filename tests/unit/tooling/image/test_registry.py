"""The name of a repository in a registry, and a tag that exists there already."""

import http.server
from collections.abc import Iterator
from urllib.parse import unquote

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.answers import answer, served
from tooling.engine import docker
from tooling.image.registry import Registry, Target

DIGEST = f"sha256:{'d' * 64}"
OURS = f"sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("text", "host", "name"),
    [
        ("localhost:5000/stack", "localhost:5000", "stack"),
        ("127.0.0.1:5000/team/stack", "127.0.0.1:5000", "team/stack"),
        ("registry.example/team/cpu-train_stack", "registry.example", "team/cpu-train_stack"),
        ("registry:5000/stack", "registry:5000", "stack"),
        ("a-b.example:65535/stack", "a-b.example:65535", "stack"),
    ],
)
def test_a_registry_is_a_host_and_a_name(text: str, host: str, name: str) -> None:
    assert Target.parse(text) == Target(host, name)


@pytest.mark.parametrize(
    "text",
    [
        *("stack", "team/stack", "registry.example/Stack", "registry.example/a:tag", "http://h.example/a", "h.x/"),
        *("-h.example/a", "h-.example/a", "h..example/a", "-host:5000/a"),
        *("h.example:0/a", "h.example:65536/a", "h.example:99999/a", "h.example:/a"),
    ],
)
def test_another_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=f"--registry is '{text}', expected HOST"):
        Target.parse(text)


@pytest.mark.parametrize("scheme", ["", "https://"])
def test_a_password_is_not_repeated(scheme: str) -> None:
    with pytest.raises(UsageError, match=f"--registry is '{scheme}h.example/a', expected HOST"):
        Target.parse(f"{scheme}user:s3cret@h.example/a")


class _Engine(http.server.BaseHTTPRequestHandler):
    """An engine whose registry has one tag. It has the image `local`; a pull brings the image `remote`."""

    local, remote = "", ""
    seen: list[str]

    def do_GET(self) -> None:
        path = unquote(self.path).partition("?")[0].partition("/stack")[2]
        tagged = {"Descriptor": {"digest": DIGEST}, "Platforms": []}
        known = {":taken/json": tagged, f"@{DIGEST}/json": {"Id": self.local} if self.local else None}
        known[""] = {"ApiVersion": "1.45", "Id": OURS}  # the version, and the image by its ID
        if path == ":hidden/json":  # Docker Hub, 2023: the repository does not exist
            denied = "denied: requested access to the resource is denied"
            return answer(self, {"message": f"errors:\n{denied}\nunauthorized: authentication required\n"}, 401)
        return self._answer(known.get(path))

    def do_POST(self) -> None:
        type(self).seen.append(self.path.partition("?")[0])
        type(self).local = self.remote
        pushed = f"taken: digest: {DIGEST} size: 7"
        self._answer({"status": pushed if self.path.partition("?")[0].endswith("/push") else "pulled"})

    def _answer(self, document: object) -> None:
        answer(self, document or {"message": "not found"}, 200 if document else 404)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(_Engine, "seen", [], raising=False)
    monkeypatch.setattr(_Engine, "local", "")
    with served(_Engine) as address:
        opened = Registry(f"tcp://{address}", Target("registry.example", "stack"))
        yield opened
        opened.client.close()


@pytest.mark.parametrize(("local", "remote"), [(OURS, ""), ("", OURS)])
def test_a_push_that_failed_after_it_sent_the_image_is_resumed(
    local: str, remote: str, repository: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Engine, "local", local)
    monkeypatch.setattr(_Engine, "remote", remote)
    assert repository.find("free", OURS) is None
    assert repository.push(OURS, "taken") == DIGEST
    assert len(_Engine.seen) == bool(remote), "something was pushed"


@pytest.mark.parametrize(("local", "remote"), [("sha256:2", ""), ("", "sha256:2")])
def test_a_tag_of_another_image_is_refused(
    local: str, remote: str, repository: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(docker, "remove_image", removed.append)
    monkeypatch.setattr(_Engine, "local", local)
    monkeypatch.setattr(_Engine, "remote", remote)
    with pytest.raises(UsageError, match="this tag is never overwritten"):
        repository.find("taken", None)
    with pytest.raises(UsageError, match="this tag is never overwritten"):
        repository.push(OURS, "taken")
    assert removed == ([f"registry.example/stack@{DIGEST}"] if remote else [])


def test_the_digest_of_a_push_is_in_its_last_line(repository: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "remove_image", lambda _: None)
    monkeypatch.setattr(_Engine, "remote", OURS)
    assert repository.push(OURS, "taken", moving=True) == DIGEST


def test_a_repository_that_does_not_exist_may_be_reported_as_unauthorized(repository: Registry) -> None:
    with pytest.raises(UsageError, match="does not have this repository: run docker login registry"):
        repository.find("hidden", None)
