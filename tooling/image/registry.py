"""Pushes to a registry through the engine: never overwrites a tag, and verifies the digest of each push.

The engine connects to the registry, with the credentials of docker login. The engine also decides whether it
accepts a registry without TLS: by default only on loopback.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.engine import docker, failures
from tooling.engine.client import connect

# The engine tries each layer five times, with pauses of 5 to 20 seconds, and reports progress every second.
SILENCE_SECONDS = 120
PROGRESS_STEP = 0.1
# Registries have no "push only if the tag is new". To detect two pushes of one tag at the same time, each push
# checks the tag before it starts, every CHECK_SECONDS while it runs, and SETTLE_SECONDS after: at most one
# succeeds.
CHECK_SECONDS = 1.0
SETTLE_SECONDS = 3.0

_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_TARGET = re.compile(
    rf"(?P<host>{_LABEL}(\.{_LABEL})+|localhost|{_LABEL}(?=:))(:(?P<port>[0-9]{{1,5}}))?"
    r"/(?P<name>[a-z0-9]+([._/-]+[a-z0-9]+)*)"
)
_LAST_PORT = 65535
# The last line of a push. With containerd's image store, nothing else has the digest.
_PUSHED = re.compile(r"\S+: digest: (sha256:[0-9a-f]{64}) size: \d+")
# Docker Hub does not tell a user who may not read a repository from a repository that does not exist.
_REJECTED = (
    "the registry rejected these credentials, or does not have this repository: run docker login {host}, or "
    "create the repository"
)
# Part of the engine's message -> what to do about it. The first match wins.
_CAUSES = (
    (
        "server gave HTTP response",
        "the registry has no TLS: enable TLS, or add it to the engine's insecure-registries",
    ),
    ("certificate", "its certificate is not trusted: add the registry's CA to the engine"),
    ("no basic auth credentials", "the registry requires credentials: run docker login {host}"),
    ("unauthorized", _REJECTED),
    ("authentication required", _REJECTED),
    ("denied", "this user may not push there: ask for permission, or choose another name"),
    ("no such host", "its name does not resolve: check the name and the network"),
    ("connection refused", "nothing listens there: check host and port"),
    ("500 Internal Server Error", "the registry reported an internal error: check its disk and its log"),
    ("no space left", "its disk is full"),
    ("timeout", "the registry does not answer: check the network"),
    ("EOF", "the connection broke: check the network, and push again"),
    ("reset by peer", "the connection broke: check the network, and push again"),
    ("broken pipe", "the connection broke: check the network, and push again"),
)


@dataclass(frozen=True)
class Target:
    """A repository: HOST[:PORT]/NAME."""

    host: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Target:
        match = _TARGET.fullmatch(text)
        if not match or not 1 <= int(match["port"] or 1) <= _LAST_PORT:
            shown = re.sub(r"(^|://)[^/@]*:[^/@]*@", r"\1", text)  # without a password
            raise UsageError(f"--registry is {shown!r}, expected HOST[:PORT]/NAME in lower case, without a tag")
        return cls(text.partition("/")[0], match["name"])

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


class Registry:
    """One repository, through the engine at `endpoint`."""

    def __init__(self, endpoint: str, target: Target) -> None:
        self.target = target
        self.client = connect(endpoint, timeout=SILENCE_SECONDS)

    def digest(self, tag: str) -> str | None:
        """The digest of a tag from the registry (a HEAD request), or None if the tag does not exist."""
        with self._explained(f"looking up {self.target}:{tag}"):
            try:
                return str(self.client.images.get_registry_data(f"{self.target}:{tag}").id)
            except failures.NotFound:
                return None

    def push(self, image_id: str, tag: str, *, moving: bool = False) -> str:
        """Push a local image under a tag. Returns its digest, after a pull and the registry have confirmed it.

        A tag that already names this image is left as it is. Raises UsageError if the tag names another image, or
        appears during the push. Overwrites a `moving` tag.
        """
        reference = f"{self.target}:{tag}"
        if not moving and (digest := self.find(tag, image_id)):
            say(f"{reference} already names this image: nothing to send")
            return digest
        with self._explained(f"pushing {reference}"):
            self.client.images.get(image_id).tag(str(self.target), tag)
            try:
                pushed = self._stream(tag, moving)
            finally:
                docker.remove_image(reference)
        self.pull(pushed, image_id)
        if not moving:
            time.sleep(SETTLE_SECONDS)
        confirmed = self.digest(tag)
        if confirmed != pushed:
            raise UsageError(
                f"{reference}: the push ended with {pushed}, but the tag now names {confirmed or 'nothing'}: "
                "another push to this tag ran at the same time"
            )
        return pushed

    def find(self, tag: str, image_id: str | None) -> str | None:
        """The digest of a tag that names the local image, or None if the tag does not exist.

        Raises UsageError if the tag names another image.
        """
        digest = self.digest(tag)
        if digest and not (image_id and self._is_digest_of(digest, image_id)):
            raise self._taken(tag, digest)
        return digest

    def _is_digest_of(self, digest: str, image_id: str) -> bool:
        """Whether the digest is the local image's. The engine pulls an image that it lacks; another is removed."""
        reference = f"{self.target}@{digest}"
        with self._explained(f"pulling {reference}"):
            try:
                found = self.client.images.get(reference).id
            except failures.NotFound:
                found = self.client.images.pull(reference).id
                if found != image_id:
                    docker.remove_image(reference)
        return bool(found == image_id)

    def _taken(self, tag: str, digest: str) -> UsageError:
        return UsageError(
            f"{self.target}:{tag} already exists ({digest}): this tag is never overwritten: push another commit"
        )

    def pull(self, digest: str, image_id: str | None = None) -> str:
        """Pull by digest. Returns the reference. Raises UsageError if the pulled image is not `image_id`."""
        reference = f"{self.target}@{digest}"
        with self._explained(f"pulling {reference}"):
            found = str(self.client.images.pull(reference).id)
        if image_id and found != image_id:
            raise UsageError(f"{reference}: a pull returned the image {found}, expected {image_id}")
        return reference

    def _stream(self, tag: str, moving: bool) -> str:
        progress = _Progress()
        digest = existing = None
        checked = time.monotonic()
        lines = self.client.images.push(str(self.target), tag=tag, stream=True, decode=True)
        try:
            for line in lines:
                if "error" in line:
                    raise failures.DockerException(line["error"])
                if ended := _PUSHED.fullmatch(str(line.get("status"))):
                    digest = ended[1]
                progress.see(line)
                if moving or digest or time.monotonic() - checked < CHECK_SECONDS:
                    continue
                # The tag may come from this push, whose last lines then follow at once.
                if existing:
                    raise self._taken(tag, existing)
                with suppress(UsageError):  # the engine retries after a network failure
                    existing = self.digest(tag)
                checked = time.monotonic()
        finally:
            lines.close()  # the engine aborts a push when its client disconnects
        if existing and digest and existing != digest:
            raise self._taken(tag, existing)
        if digest is None:
            raise failures.DockerException("the push ended without a digest")
        return digest

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (failures.DockerException, failures.RequestException) as error:
            reason = " ".join(str(getattr(error, "explanation", None) or error).split())
            meaning = next((meaning for needle, meaning in _CAUSES if needle in reason), None)
            if isinstance(error, failures.Timeout):
                meaning = f"no response for {SILENCE_SECONDS} s: check the network"
            why = meaning.format(host=self.target.host) if meaning else "unexpected error"
            raise UsageError(f"{doing}: {self.target.host}: {why} ({reason})") from None


class _Progress:
    """Reports each tenth of a push. Layers that the registry already has do not count."""

    def __init__(self) -> None:
        self.layers: dict[str, tuple[int, int]] = {}
        self.reported = 0.0

    def see(self, line: dict[str, Any]) -> None:
        detail = line.get("progressDetail") or {}
        if line.get("status") == "Pushing" and detail.get("total"):
            self.layers[line["id"]] = (min(detail.get("current", 0), detail["total"]), detail["total"])
        elif str(line.get("status")).startswith("Retrying in 5 "):
            say(f"  layer {line['id']} failed: retrying")
        sent = sum(current for current, _ in self.layers.values())
        total = sum(size for _, size in self.layers.values())
        if total and sent / total >= self.reported + PROGRESS_STEP:
            self.reported = sent / total
            say(f"  {sent / 1e6:.0f} of {total / 1e6:.0f} MB (before compression)")
