"""`./inv build`: builds the images of pins with buildx from wheels that were fetched on the host."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked, write_with_folder
from cpu_train_stack.cli.say import say
from cpu_train_stack.cli.signals import die_with_parent
from tooling.basis.paths import CACHE
from tooling.engine import api, docker
from tooling.image import base, proxies, recipe
from tooling.image.base import Base
from tooling.pins import parse
from tooling.pins.pin import Pin
from tooling.wheels import added, fetch, locks


@dataclass(frozen=True)
class Image:
    """A local image of a pin. `seconds`: how long the build took, 0 if `built` is false."""

    tag: str
    id: str
    size_bytes: int
    built: bool
    seconds: float


def run(pin: Pin, prune: bool = False) -> None:
    """`./inv build`: build one pin, and move its shared tag to the image. `prune`: then delete its wheels."""
    api.ensure()
    _run(pin, prune)


def run_all(torch_source: str, prune: bool = False) -> None:
    """`./inv build --all`: build every row. Reports each row that fails, and then raises Exit with 1.

    A row without a lock fails. ./inv dev lock writes locks, and they are committed.
    """
    api.ensure()
    rows, failed = parse.load().pins, []
    for name in rows:
        pin = locks.choose_pin(name, (), torch_source)
        try:
            _run(pin, prune)
        except UsageError as error:
            say(f"{pin.name}: {error}")
            failed.append(pin.name)
    if failed:
        raise Exit(f"{len(failed)} of {len(rows)} rows were not built: {', '.join(failed)}", code=1)


def _run(pin: Pin, prune: bool) -> None:
    try:
        image = build(pin)
    finally:
        if prune:
            with _locked(pin):  # a build reads the wheels until its end
                fetch.remove(pin)
    take_shared_tag(pin)
    done = f"built in {image.seconds:.0f} s" if image.built else "up to date"
    say(f"{image.tag}: {done}, {image.size_bytes / 1e9:.2f} GB, {image.id}; also tagged {pin.shared_tag}")


def build(pin: Pin, of_this_commit: bool = False) -> Image:
    """Build the pin's image unless it is up to date. The engine must run (tooling.engine.api.ensure).

    Every command that needs an image calls this function, most of them through tooling.image.choice. The pin's
    shared tag moves to the image if the tag is unused or names this checkout's previous image. A user's own
    versions and packages are resolved first, once.

    Commits that change no input of an image do not rebuild it. With `of_this_commit`, the labels of the image must
    name the commit that is checked out. The advisories for the pin's versions are printed first, one line each.
    """
    with _locked(pin):
        return _find_or_build(pin, of_this_commit)


def _find_or_build(pin: Pin, of_this_commit: bool) -> Image:
    started = time.monotonic()
    files.clear_scratch(CACHE)
    for warning in pin.warnings:
        say(f"{pin.name}: warning: {warning}")
    if pin.without_added.own and not locks.path_of(pin).is_file():
        locks.write(pin)
    if pin.added:
        added.ensure(pin)
    wheels = {**locks.read(pin), **locks.read_added(pin)}
    versions = {name: wheel.version for name, wheel in wheels.items()} | pin.compiled_packages
    base_image = base.ensure(pin)
    inputs = recipe.inputs_sha256(pin, base_image)
    previous = docker.find_image(pin.image)
    if (
        previous
        and built_here(pin, previous)
        and previous.labels.get(recipe.INPUTS_LABEL) == inputs
        and (not of_this_commit or previous.labels.get(recipe.REVISION_LABEL) == recipe.revision()[0])
    ):
        return Image(pin.image, previous.id, previous.size_bytes, built=False, seconds=0.0)
    _buildx(pin, base_image, recipe.labels(pin, base_image, versions, inputs), pin.image)
    image = docker.find_image(pin.image)
    if image is None:
        raise UsageError(
            f"buildx succeeded, but {pin.image} is not in the engine: check whether another builder is selected"
        )
    write_with_folder(_record_of(pin), f"{files.text(_record_of(pin))}{image.content_sha256}\n")
    shared = docker.find_image(pin.shared_tag)
    if shared is None or (previous and shared.id == previous.id):  # unused, or this checkout's
        take_shared_tag(pin)
    if previous and previous.id != image.id:
        _remove_untagged(previous.id)
    return Image(pin.image, image.id, image.size_bytes, built=True, seconds=time.monotonic() - started)


def built_here(pin: Pin, image: docker.LocalImage) -> bool:
    """Whether this checkout built the image. Its label proves nothing: everybody can compute it."""
    return image.content_sha256 in files.text(_record_of(pin)).split()


def _record_of(pin: Pin) -> Path:
    return CACHE / "build" / f"{pin.name}.built"


def rebuild(pin: Pin, tag: str, option: str) -> None:
    """Build the pin's image, up to date or not, under another tag and without labels. `option`: of buildx."""
    with _locked(pin):
        _buildx(pin, base.ensure(pin), {}, tag, option)


@contextmanager
def _locked(pin: Pin) -> Iterator[None]:
    """Locks the pin during a build: builds of one pin share the wheels, with added packages too, and the log."""
    name = pin.without_added.name
    file = CACHE / "build" / f".{name}.lock"
    with locked(file, lambda: say(f"waiting for another ./inv that is building pin {name}")):
        yield


def take_shared_tag(pin: Pin) -> None:
    """Move the pin's shared tag to this checkout's image.

    The image that had the shared tag before keeps the tag of its checkout.
    """
    result = docker.call("tag", pin.image, pin.shared_tag)
    if result.returncode != 0:
        raise UsageError(f"{pin.image} cannot be tagged {pin.shared_tag}: {' '.join(result.stderr.split())}")


def _remove_untagged(identifier: str) -> None:
    """Remove the image that the tag named before, unless another tag or a container still uses the image."""
    dangling = docker.call("image", "ls", "--quiet", "--no-trunc", "--filter", "dangling=true").stdout
    if identifier in dangling.split():
        docker.remove_image(identifier)


def _buildx(pin: Pin, base_image: Base, labels: Mapping[str, str], tag: str, *options: str) -> None:
    wheels = fetch.fetch(pin)
    added_wheels = fetch.fetch_added(pin) if pin.added else None
    lock_folder = recipe.stage_locks(pin, CACHE / "build" / pin.name)
    say(f"building {tag}")
    buildx(
        recipe.build_argv(pin, base_image, wheels, lock_folder, labels, tag, options, added_wheels), tag, pin.name
    )


def buildx(argv: Sequence[str], what: str, name: str) -> None:
    """Run buildx with its display on a terminal. Without a terminal, write a log, and print its end on failure."""
    used = proxies.in_builds(os.environ)
    argv = [*argv, *(f"--build-arg={name}" for name in used)]  # buildx reads the values: they may have a password
    environ = {**os.environ, **used, "DOCKER_BUILDKIT": "1"}
    if sys.stderr.isatty():
        if subprocess.run(argv, env=environ, check=False, preexec_fn=die_with_parent).returncode != 0:
            raise UsageError(f"building {what} failed: see the step above")
        return
    log = CACHE / "logs" / f"build-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        returncode = subprocess.run(
            [*argv, "--progress=plain"],
            env=environ,
            stdout=stream,
            stderr=stream,
            check=False,
            preexec_fn=die_with_parent,
        ).returncode
    if returncode != 0:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]:
            say(line)
        raise UsageError(f"building {what} failed: see the lines above; the complete log is {log}")
