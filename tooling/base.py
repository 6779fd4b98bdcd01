"""The Debian base of an image: present, or pulled by digest, or made by mmdebstrap where no registry answers."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tooling import engine
from tooling.errors import UsageError
from tooling.paths import CACHE
from tooling.pin import Pin

# A registry that has said nothing for this long is taken for one that is not there.
SILENCE_SECONDS = 20.0
# Without a terminal the engine prints nothing while a layer (29 MB) comes, however slowly.
STALL_SECONDS = 300.0
BOOTSTRAP_SECONDS = 900.0
MERGED_USR_HOOK = Path("/usr/share/mmdebstrap/hooks/merged-usr")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """`reference` is what FROM names, `source` how it came here.

    `digest` is the manifest's in the registry, or, of an image that is in no registry, the image's own ID.
    """

    reference: str
    digest: str
    source: str


def ensure(pin: Pin, say: Say) -> Base:
    """The pin's base image, made present if it is not. Raises UsageError when there is no way to get one."""
    bootstrapped = f"cpu-train-stack-base:{pin.debian.suite}"
    official = Base(pin.base, pin.base.partition("@")[2], "registry")
    if pin.base and image_id(pin.base):
        return official
    if identifier := image_id(bootstrapped):
        return Base(bootstrapped, identifier, "mmdebstrap")
    why = "no official image of it is recorded"
    if pin.base:
        say(
            f"base image {pin.base.partition('@')[0]}: asking its registry "
            f"(at most {SILENCE_SECONDS:.0f} s of silence)"
        )
        if pull(pin.base, silence_seconds=SILENCE_SECONDS):
            return official
        why = "no registry answers"
    say(f"{why}: making Debian {pin.debian.number} ({pin.debian.suite}) with mmdebstrap")
    engine.ensure_mmdebstrap(say)
    bootstrap(pin, bootstrapped)
    return Base(bootstrapped, image_id(bootstrapped), "mmdebstrap")


def image_id(reference: str) -> str:
    """The ID of a local image, empty if there is none."""
    argv = ["docker", "image", "inspect", "--format", "{{.Id}}", reference]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def pull(reference: str, silence_seconds: float, stall_seconds: float = STALL_SECONDS) -> bool:
    """Pulls an image; gives up when the registry does not answer, or when nothing comes any more."""
    argv = ["docker", "pull", reference]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(argv, stdout=output, stderr=subprocess.DEVNULL) as process,
    ):
        size, since = 0, time.monotonic()
        try:
            while True:
                try:
                    return process.wait(timeout=0.5) == 0
                except subprocess.TimeoutExpired:
                    seen = os.fstat(output.fileno()).st_size  # the first line is printed once a registry answers
                    if seen > size:
                        size, since = seen, time.monotonic()
                    elif time.monotonic() - since > (stall_seconds if size else silence_seconds):
                        return False
        finally:
            process.kill()


def bootstrap(pin: Pin, tag: str) -> None:
    """Makes a minimal Debian with mmdebstrap from the host's default mirror.

    Imports it as `tag`, unless that exists by then.
    """
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="base-") as scratch:
        archive = Path(scratch) / "base.tar"
        mode = "root" if os.geteuid() == 0 else "unshare"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--mode={mode}"]
        argv += [*_merged_usr(pin), pin.debian.suite, str(archive)]
        try:
            made = subprocess.run(
                argv, capture_output=True, text=True, check=False, timeout=BOOTSTRAP_SECONDS, cwd=scratch
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"mmdebstrap {pin.debian.suite} did not end within {BOOTSTRAP_SECONDS:.0f} s: "
                "check that Debian's mirror answers"
            ) from None
        if made.returncode != 0:
            why = _last_line(made.stderr)
            raise UsageError(f"mmdebstrap {pin.debian.suite} failed: {why}; check that Debian's mirror answers")
        if image_id(tag):  # made by another checkout meanwhile: the first is used by all
            return
        argv = ["docker", "import", str(archive), tag]
        imported = subprocess.run(argv, capture_output=True, text=True, check=False)
        if imported.returncode != 0:
            raise UsageError(f"docker import of {tag} failed: {_last_line(imported.stderr)}")


def _merged_usr(pin: Pin) -> list[str]:
    """Options for a /usr that is merged from the start.

    Since Debian 12 init-system-helpers wants usrmerge, which brings all of perl with its headers (43 MB), or else
    usr-is-merged, which is empty. Older releases want neither.
    """
    if pin.debian.number < 12 or not MERGED_USR_HOOK.is_dir():
        return []
    return [f"--hook-dir={MERGED_USR_HOOK}", "--include=usr-is-merged"]


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no message"])[-1]
