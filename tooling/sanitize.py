"""`./inv sanitize`: the ccl backend compiled with a sanitizer, and every collective and DDP's hooks run on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from invoke.exceptions import Exit

from tooling import base, container, engine, images, pins, wheels
from tooling.errors import UsageError
from tooling.paths import CACHE
from tooling.pin import Pin

# The stage of images/Dockerfile that compiles the backend, and where it unpacks oneCCL.
STAGE = "backend"
ONECCL = "/tmp/oneccl"  # noqa: S108  in the container, images/scripts/build-bindings makes it
LIMIT_SECONDS = 1800.0

Say = Callable[[str], None]


def run(pin_name: str | None, thread: bool, say: Say) -> None:
    """AddressSanitizer, or with `thread` ThreadSanitizer.

    Builds the stage that has the compiler, runs bindings/tests/sanitize.py in it, raises Exit with its code.
    """
    name = "ThreadSanitizer" if thread else "AddressSanitizer"
    pin = pins.load().pin(pin_name)
    engine.ensure(say)
    tag = f"{pin.image}-{STAGE}"
    say(f"building {tag}, which has the compiler")
    with images.building(pin, say):
        argv = stage_argv(pin, tag, say)
        built = subprocess.run(argv, env={**os.environ, "DOCKER_BUILDKIT": "1"}, check=False)
    if built.returncode != 0:
        raise UsageError(f"building {tag} failed: the step above says why")
    try:
        done = container.run(
            tag,
            [
                *("/opt/venv/bin/python", "/bindings/tests/sanitize.py", "/bindings/build.py", ONECCL),
                f"--sanitizer={'thread' if thread else 'address'}",
            ],
            [
                # ThreadSanitizer needs fixed addresses; Docker's default profile refuses them.
                *(["--security-opt=seccomp=unconfined"] if thread else []),
                f"--volume={images.BINDINGS}:/bindings:ro",
                f"--volume={images.ENTRYPOINTS}:/opt/cpu-train-stack/entrypoints:ro",
            ],
            limit_seconds=LIMIT_SECONDS,
        )
    finally:  # what it is made of stays in the build cache
        subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=False)
    if done.returncode != 0:
        raise Exit(f"{name} found something or a rank failed: see above", code=done.returncode)
    print(f"{name} found nothing")


def stage_argv(pin: Pin, tag: str, say: Say) -> list[str]:
    """The buildx command of ./inv build, stopped at the stage."""
    staged = images.stage_locks(pin, CACHE / "build" / pin.name)
    argv = images.build_argv(pin, base.ensure(pin, say), wheels.fetch(pin, say), staged, {})
    argv[argv.index("--tag") + 1] = tag
    return [*argv[:-1], f"--target={STAGE}", argv[-1]]
