"""A registry through the engine: look a tag up, push without ever overwriting, read the digest back twice.

The engine speaks to the registry, with the credentials of Docker's own store (docker login): none passes through
here. A registry without TLS is the engine's decision too: it takes one on loopback.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from tooling.engine_client import connect
from tooling.errors import UsageError

# The engine itself tries each layer five times, with pauses of 5 to 20 seconds, of which it tells every second.
SILENCE_SECONDS = 120
PROGRESS_STEP = 0.1
# Registries have no "only if it is not there". Two that push one tag at once: each looks before its layers, while
# they are sent, and once more after so many seconds. Then one of them at most has seen its own image all along.
LOOK_SECONDS = 1.0
SETTLE_SECONDS = 3.0

_TARGET = re.compile(
    r"(?P<host>[a-zA-Z0-9.-]+\.[a-zA-Z0-9.-]+|localhost|[a-zA-Z0-9-]+(?=:))(?P<port>:[0-9]+)?"
    r"/(?P<name>[a-z0-9]+([._/-]+[a-z0-9]+)*)"
)
# What the engine says -> what to do about it. The first that occurs wins.
_CAUSES = (
    ("server gave HTTP response", "it has no TLS: put it behind TLS, or into the engine's insecure-registries"),
    ("certificate", "its certificate is not trusted: give the engine the registry's CA"),
    ("no basic auth credentials", "it wants credentials: docker login {host}"),
    ("unauthorized", "it refuses these credentials: docker login {host}"),
    ("authentication required", "it refuses these credentials: docker login {host}"),
    ("denied", "it does not let this user write there: ask for the right, or choose another name"),
    ("no such host", "its name does not resolve: check the name and the network"),
    ("connection refused", "nothing listens there: check host and port"),
    ("500 Internal Server Error", "it failed by itself: see whether its disk is full, and its log"),
    ("no space left", "its disk is full"),
    ("timeout", "it does not answer: check the network"),
    ("EOF", "the connection broke: check the network, and push again"),
    ("reset by peer", "the connection broke: check the network, and push again"),
    ("broken pipe", "the connection broke: check the network, and push again"),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A repository: HOST[:PORT]/NAME."""

    host: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Target:
        match = _TARGET.fullmatch(text)
        if not match:
            raise UsageError(f"--registry is {text!r}, expected HOST[:PORT]/NAME in lower case, without a tag")
        return cls(match["host"] + (match["port"] or ""), match["name"])

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


class Registry:
    """One repository, through the engine at `endpoint`."""

    def __init__(self, endpoint: str, target: Target) -> None:
        self.target = target
        self.client = connect(endpoint, timeout=SILENCE_SECONDS)

    def digest(self, tag: str) -> str | None:
        """What the registry itself gives as the digest of a tag, by HEAD; None if there is no such tag."""
        with self._explained(f"looking {self.target}:{tag} up"):
            try:
                return str(self.client.images.get_registry_data(f"{self.target}:{tag}").id)
            except NotFound:
                return None

    def push(self, image_id: str, tag: str, say: Say, *, moving: bool = False) -> str:
        """Pushes a local image under a tag and returns its digest, which the registry and a pull confirm.

        Raises UsageError where the tag is there, or comes up meanwhile; a `moving` tag is overwritten.
        """
        reference = f"{self.target}:{tag}"
        if not moving:
            self.refuse_taken(tag)
        with self._explained(f"pushing {reference}"):
            self.client.images.get(image_id).tag(str(self.target), tag)
            try:
                pushed = self._stream(tag, say, moving)
            finally:
                remove_tag(reference)
        self.pull(pushed, image_id)
        if not moving:
            time.sleep(SETTLE_SECONDS)
        confirmed = self.digest(tag)
        if confirmed != pushed:
            raise UsageError(
                f"{reference}: the push ended with {pushed}, but the registry has {confirmed or 'nothing'} there: "
                "another push to this tag ran at the same time"
            )
        return pushed

    def refuse_taken(self, tag: str) -> None:
        """Raises UsageError where the registry has the tag."""
        if there := self.digest(tag):
            raise self._taken(tag, there)

    def _taken(self, tag: str, there: str) -> UsageError:
        return UsageError(f"{self.target}:{tag} exists already ({there}): an immutable tag is never pushed twice")

    def pull(self, digest: str, image_id: str | None = None) -> str:
        """Pulls by digest; returns the reference. Raises UsageError where it is not the image `image_id`."""
        reference = f"{self.target}@{digest}"
        with self._explained(f"pulling {reference}"):
            found = str(self.client.images.pull(reference).id)
        if image_id and found != image_id:
            raise UsageError(f"{reference}: a pull gives the image {found}, expected {image_id}")
        return reference

    def _stream(self, tag: str, say: Say, moving: bool) -> str:
        progress = _Progress(say)
        digest = there = None
        looked = time.monotonic()
        lines = self.client.images.push(str(self.target), tag=tag, stream=True, decode=True)
        try:
            for line in lines:
                if "error" in line:
                    raise DockerException(line["error"])
                digest = line.get("aux", {}).get("Digest", digest)
                progress.see(line)
                if moving or digest or time.monotonic() - looked < LOOK_SECONDS:
                    continue
                # The tag may be this push's own, whose last lines are yet to be read: they come at once.
                if there:
                    raise self._taken(tag, there)
                with suppress(UsageError):  # the engine tries again where the network breaks
                    there = self.digest(tag)
                looked = time.monotonic()
        finally:
            lines.close()  # the engine ends a push that nobody follows
        if there and digest and there != digest:
            raise self._taken(tag, there)
        if digest is None:
            raise DockerException("the engine's push ended without a digest")
        return str(digest)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (DockerException, requests.RequestException) as error:
            said = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
            said = " ".join(str(said).split())
            meaning = next((meaning for needle, meaning in _CAUSES if needle in said), None)
            if isinstance(error, requests.Timeout):
                meaning = f"nothing came for {SILENCE_SECONDS} s: check the network"
            why = meaning.format(host=self.target.host) if meaning else "see what it says"
            raise UsageError(f"{doing}: {self.target.host}: {why} ({said})") from None


class _Progress:
    """A line for each tenth of what is sent; layers that the registry has already count as nothing."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.layers: dict[str, tuple[int, int]] = {}
        self.told = 0.0

    def see(self, line: dict[str, Any]) -> None:
        detail = line.get("progressDetail") or {}
        if line.get("status") == "Pushing" and detail.get("total"):
            self.layers[line["id"]] = (min(detail["current"], detail["total"]), detail["total"])
        elif str(line.get("status")).startswith("Retrying in 5 "):
            self.say(f"  layer {line['id']} failed, trying again")
        sent = sum(current for current, _ in self.layers.values())
        total = sum(size for _, size in self.layers.values())
        if total and sent / total >= self.told + PROGRESS_STEP:
            self.told = sent / total
            self.say(f"  {sent / 1e6:.0f} of {total / 1e6:.0f} MB (before compression)")


def remove_tag(reference: str) -> None:
    """Takes a local tag away; the image stays while something else names it."""
    subprocess.run(["docker", "image", "rm", reference], capture_output=True, check=False)


def present(endpoint: str, reference: str) -> str | None:
    """The ID of a local image, None if there is none."""
    try:
        return str(connect(endpoint).images.get(reference).id)
    except ImageNotFound:
        return None
