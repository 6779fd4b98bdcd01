"""The Debian base of an image: present, or pulled by digest, or made by mmdebstrap where no registry answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tooling.errors import UsageError
from tooling.paths import CACHE
from tooling.pins import Pin

# A registry that has said nothing for this long is taken for one that is not there.
SILENCE_SECONDS = 20.0
BOOTSTRAP_SECONDS = 900.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """`reference` is what FROM names, `digest` what it was when it was looked at, `source` how it came here."""

    reference: str
    digest: str
    source: str


def ensure(pin: Pin, say: Say) -> Base:
    """The pin's base image, made present if it is not. Raises UsageError when there is no way to get one."""
    bootstrapped = f"cpu-train-stack-base:{pin.debian.suite}"
    for reference, source in ((pin.base, "registry"), (bootstrapped, "mmdebstrap")):
        if identifier := image_id(reference):
            return Base(reference, identifier, source)
    say(f"base image {pin.base.split('@')[0]}: asking its registry (at most {SILENCE_SECONDS:.0f} s of silence)")
    if pull(pin.base, silence_seconds=SILENCE_SECONDS):
        return Base(pin.base, image_id(pin.base), "registry")
    say(f"no registry answers: making Debian {pin.debian.number} ({pin.debian.suite}) with mmdebstrap")
    bootstrap(pin, bootstrapped)
    return Base(bootstrapped, image_id(bootstrapped), "mmdebstrap")


def image_id(reference: str) -> str:
    """The ID of a local image, empty if there is none."""
    argv = ["docker", "image", "inspect", "--format", "{{.Id}}", reference]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def pull(reference: str, silence_seconds: float) -> bool:
    """Pulls an image; gives up when the engine has printed nothing for `silence_seconds`."""
    with subprocess.Popen(
        ["docker", "pull", reference], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        stdout = process.stdout
        assert stdout is not None  # noqa: S101 - Popen was asked for a pipe
        heard = threading.Event()

        def listen() -> None:
            for _ in stdout:
                heard.set()
            heard.set()

        threading.Thread(target=listen, daemon=True).start()
        while process.poll() is None:
            if not heard.wait(silence_seconds):
                process.kill()
                break
            heard.clear()
        return process.wait() == 0


def bootstrap(pin: Pin, tag: str) -> None:
    """Makes a minimal Debian with mmdebstrap from the host's default mirror and imports it as `tag`."""
    if shutil.which("mmdebstrap") is None:
        raise UsageError(
            f"no registry has {pin.base.split('@')[0]} and mmdebstrap is not installed: "
            "connect to a registry, or install Debian's package mmdebstrap"
        )
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="base-") as scratch:
        archive = Path(scratch) / "base.tar"
        mode = "root" if os.geteuid() == 0 else "unshare"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--mode={mode}", pin.debian.suite, str(archive)]
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
            last = (made.stderr.strip().splitlines() or ["no message"])[-1]
            raise UsageError(f"mmdebstrap {pin.debian.suite} failed: {last}; check that Debian's mirror answers")
        subprocess.run(["docker", "import", str(archive), tag], check=True, capture_output=True)
