"""The Debian base of an image: an image in the engine, or pulled by digest, or built by mmdebstrap.

mmdebstrap is only for machines that cannot reach a registry. A pull that a registry refuses, or that breaks, is an
error, because the user can fix the cause.
"""

import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import scratch
from cpu_train_stack.cli.printable import last_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.cli.signals import die_with_parent
from tooling.basis.paths import CACHE
from tooling.engine import api, docker
from tooling.image import proxies
from tooling.pins.pin import Pin

# A registry that sends nothing for this long counts as unreachable.
SILENCE_SECONDS = 20.0
# Without a terminal, the engine prints nothing while it pulls a layer (29 MB), however slowly.
STALL_SECONDS = 300.0
BOOTSTRAP_SECONDS = 900.0
_POLL_SECONDS = 0.2
MERGED_USR_HOOK = Path("/usr/share/mmdebstrap/hooks/merged-usr")
# The engine's messages for an unreachable registry: name resolution, connections, proxies that refuse.
_NO_REGISTRY = re.compile(
    r"no such host|server misbehaving|Temporary failure in name resolution|connection refused|"
    r"network is unreachable|no route to host|i/o timeout|TLS handshake timeout|Client\.Timeout exceeded|"
    r"context deadline exceeded|request canceled while waiting for connection|connection reset by peer|"
    r'proxyconnect tcp|": (EOF|Forbidden|Bad Gateway|Service Unavailable|Gateway Timeout)$'
)
# Part of the engine's message for a registry that refuses -> what to do about it. The first match wins.
_REFUSALS = (
    ("toomanyrequests", "the registry's rate limit is reached: wait, or run docker login"),
    ("no space left", "Docker's disk is full: free some space (docker system df shows the usage)"),
    ("certificate", "Docker does not trust the certificate: add the CA of the registry or of the proxy to Docker"),
    ("credentials", "the registry requires a login: run docker login"),
    ("unauthorized", "the registry rejected Docker's login: run docker login again, or docker logout"),
    ("denied", "the registry denied access: run docker login, or docker logout"),
    ("Cannot connect to the Docker daemon", "start Docker"),
)


class NoRegistryError(Exception):
    """No registry was reached. The message is the engine's."""


@dataclass(frozen=True)
class Base:
    """`reference`: the argument of FROM. `source`: how the image was obtained.

    `digest`: of the manifest in the registry, or the image's ID if the image is in no registry.
    """

    reference: str
    digest: str
    source: str


def ensure(pin: Pin) -> Base:
    """The pin's base image, pulled or built if missing. Raises UsageError if that fails."""
    bootstrapped = f"cpu-train-stack-base:{pin.debian.suite}"
    official = Base(pin.base, pin.base.partition("@")[2], "registry")
    if pin.base and docker.find_image(pin.base):
        return official
    if image := docker.find_image(bootstrapped):
        return Base(bootstrapped, image.id, "mmdebstrap")
    why = "no official base image is recorded"
    if pin.base:
        say(
            f"base image {pin.base.partition('@')[0]}: waiting for its registry "
            f"(at most {SILENCE_SECONDS:.0f} s of silence)"
        )
        try:
            pull(pin.base, silence_seconds=SILENCE_SECONDS)
        except NoRegistryError as error:
            why = f"no registry answers ({error})"
        else:
            return official
    say(f"{why}: building Debian {pin.debian.number} ({pin.debian.suite}) with mmdebstrap")
    api.ensure_mmdebstrap()
    bootstrap(pin, bootstrapped)
    return Base(bootstrapped, docker.read_image(bootstrapped).id, "mmdebstrap")


def pull(reference: str, silence_seconds: float, stall_seconds: float = STALL_SECONDS) -> None:
    """Pulls an image. Raises NoRegistryError if no registry answers within `silence_seconds`.

    Raises UsageError with the engine's message if the registry answers but the pull fails, or if the pull makes no
    progress for `stall_seconds`.
    """
    argv = ["docker", "pull", reference]
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(argv, stdout=output, stderr=complaints, preexec_fn=die_with_parent) as process,
    ):
        size, since = 0, time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                seen = os.fstat(output.fileno()).st_size  # the first line is printed once a registry answers
                if seen > size:
                    size, since = seen, time.monotonic()
                elif not size and time.monotonic() - since > silence_seconds:
                    raise NoRegistryError(f"no response for {silence_seconds:g} s")
                elif time.monotonic() - since > stall_seconds:
                    raise UsageError(f"docker pull {reference}: no progress for {stall_seconds:g} s: retry")
        finally:
            process.kill()
        if process.returncode == 0:
            return
        complaints.seek(0)
        message = last_line(complaints.read())
        if os.fstat(output.fileno()).st_size == 0 and _NO_REGISTRY.search(message):
            raise NoRegistryError(message)
        fix = next((fix for text, fix in _REFUSALS if text in message), "fix the cause and retry")
        raise UsageError(f"docker pull {reference} failed: {message}: {fix}")


def bootstrap(pin: Pin, tag: str) -> None:
    """Builds a minimal Debian with mmdebstrap from the host's default mirror.

    Imports it as `tag`, unless another checkout has done so in the meantime.
    """
    with scratch(CACHE, "base-") as folder:
        archive = folder / "base.tar"
        mode = "root" if os.geteuid() == 0 else "unshare"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--mode={mode}"]
        argv += [*_merged_usr(pin), pin.debian.suite, str(archive)]
        try:
            environ = {**os.environ, **proxies.of(os.environ)}
            result = subprocess.run(
                argv,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=BOOTSTRAP_SECONDS,
                cwd=folder,
                preexec_fn=die_with_parent,
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"mmdebstrap {pin.debian.suite} did not finish within {BOOTSTRAP_SECONDS:g} s: "
                "check that Debian's mirror answers"
            ) from None
        if result.returncode != 0:
            error = last_line(result.stderr)
            raise UsageError(f"mmdebstrap {pin.debian.suite} failed: {error}; check that Debian's mirror answers")
        if docker.find_image(tag):  # from another checkout: all checkouts share the first
            return
        imported = docker.call("import", str(archive), tag)
        if imported.returncode != 0:
            raise UsageError(f"docker import of {tag} failed: {last_line(imported.stderr)}")


def _merged_usr(pin: Pin) -> list[str]:
    """mmdebstrap's options for a /usr that is merged from the start.

    Since Debian 12, init-system-helpers depends on usrmerge, which installs perl with its headers (43 MB), or on
    usr-is-merged, which is empty. Older releases depend on neither.
    """
    if pin.debian.number < 12 or not MERGED_USR_HOOK.is_dir():
        return []
    return [f"--hook-dir={MERGED_USR_HOOK}", "--include=usr-is-merged"]
