"""Builds a pin's image with buildx from wheels that were fetched on the host.

All inputs of an image are hashed into one sha256, kept in a label: where the image of a pin already has the
sum of today's inputs, there is nothing to build.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tooling.basis.errors import UsageError
from tooling.basis.files import locked
from tooling.basis.paths import CACHE, IMAGES, ROOT
from tooling.basis.say import Say
from tooling.image import base
from tooling.image.base import Base
from tooling.pins import advisories
from tooling.pins.pin import INTEL_BINDINGS, Ccl, Pin
from tooling.wheels import fetch, locks

ENTRYPOINTS = ROOT / "entrypoints"
BINDINGS = ROOT / "bindings"
KERNELS = ROOT / "kernels"
LABEL = "cpu-train-stack"
# What the Dockerfile calls a pin's locks.
LOCK, BUILD_LOCK = "lock.txt", "build-lock.txt"
# The distribution that bindings/ makes has the name of Intel's.
BACKEND = INTEL_BINDINGS
# Beside the recipe, but no part of it: other pins' rows and what is proved of them.
NO_INPUTS = ("versions.toml", "status.json")
REVISION_LABEL = "org.opencontainers.image.revision"
DIRTY = "-dirty"
INPUTS_LABEL = f"{LABEL}.inputs-sha256"
CCL_LABEL = f"{LABEL}.ccl"
ADVISORIES_LABEL = f"{LABEL}.advisories"


@dataclass(frozen=True)
class Image:
    """A local image of a pin. `seconds` is what making it took, 0 when `built` is false."""

    tag: str
    id: str
    size_bytes: int
    built: bool
    seconds: float


def build(pin: Pin, say: Say, of_this_commit: bool = False) -> Image:
    """Builds the pin's image unless it is up to date. The engine must run (tooling.engine.api.ensure).

    The pin's shared tag moves to the image if the tag is unused or names this checkout's previous image.

    Commits that change no input of an image do not rebuild it. With `of_this_commit`, its labels must name the
    commit that is checked out. The advisories for the pin's versions are printed first, one line each.
    """
    with building(pin, say):
        return _build(pin, say, of_this_commit)


def _build(pin: Pin, say: Say, of_this_commit: bool) -> Image:
    started = time.monotonic()
    for advisory in pin.advisories:
        say(f"{pin.name}: warning: {advisory}")
    if pin.own and not locks.path_of(pin).is_file():
        locks.write(pin, say)
    lock = locks.read(pin)
    ground = base.ensure(pin, say)
    inputs = inputs_sha256(pin, ground)
    present = inspect(pin.image)
    current = not of_this_commit or (present and present[1].get(REVISION_LABEL) == revision()[0])
    if present and current and present[1].get(INPUTS_LABEL) == inputs:
        return Image(pin.image, present[0], present[2], built=False, seconds=0.0)
    folder = fetch.fetch(pin, say)
    versions = {name: wheel.version for name, wheel in lock.items()}
    if pin.ccl is Ccl.BINDINGS:
        versions[BACKEND] = pin.packages["torch"].partition("+")[0]  # it has the version of its torch
    say(f"building {pin.image}")
    staged = stage_locks(pin, CACHE / "build" / pin.name)
    _buildx(pin, build_argv(pin, ground, folder, staged, labels(pin, ground, versions, inputs)), say)
    made = inspect(pin.image)
    if made is None:
        raise UsageError(
            f"buildx succeeded, but {pin.image} is not in the engine: check whether another builder is selected"
        )
    shared = inspect(pin.shared_tag)
    if shared is None or (present and shared[0] == present[0]):  # unused, or this checkout's
        take_shared_tag(pin)
    if present and present[0] != made[0]:
        _remove_untagged(present[0])
    return Image(pin.image, made[0], made[2], built=True, seconds=time.monotonic() - started)


def build_uncached(pin: Pin, tag: str, say: Say) -> None:
    """Builds the pin's image again under another tag, without labels and without the build cache."""
    with building(pin, say):
        ground, folder = base.ensure(pin, say), fetch.fetch(pin, say)
        argv = build_argv(pin, ground, folder, stage_locks(pin, CACHE / "build" / pin.name), {})
        argv[argv.index("--tag") + 1] = tag
        _buildx(pin, [*argv[:3], "--no-cache", *argv[3:]], say)


@contextmanager
def building(pin: Pin, say: Say) -> Iterator[None]:
    """Locks the pin during a build, because builds of one pin share the staged locks and the log."""
    file = CACHE / "build" / f".{pin.name}.lock"
    with locked(file, lambda: say(f"waiting for another ./inv that is building pin {pin.name}")):
        yield


def take_shared_tag(pin: Pin) -> None:
    """Moves the pin's shared tag to this checkout's image.

    The image that had the tag before keeps the tag of its own checkout.
    """
    argv = ["docker", "tag", pin.image, pin.shared_tag]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise UsageError(f"{pin.image} cannot be tagged {pin.shared_tag}: {' '.join(result.stderr.split())}")


def stage_locks(pin: Pin, folder: Path) -> Path:
    """Copies the pin's two locks to a separate folder, so that other pins' locks are not part of the build."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in {LOCK: locks.path_of(pin), BUILD_LOCK: locks.build_path_of(pin)}.items():
        draft = folder / f"{name}.draft"
        shutil.copyfile(path, draft)
        draft.replace(folder / name)
    return folder


def build_argv(
    pin: Pin, ground: Base, wheel_folder: Path, lock_folder: Path, image_labels: Mapping[str, str]
) -> list[str]:
    """The buildx command. Labels come last in an image's history, so that a new one costs no layer."""
    arguments = {
        "BASE": ground.reference,
        "TCMALLOC_PACKAGE": pin.tcmalloc_package,
        "CCL": pin.ccl,
        "PYTHON": pin.python,
        "PIN": pin.name,
        "ADVISORIES": advisories.document(pin.advisories),
    }
    # The builder that is part of the engine, called as the context: only it sees the engine's own images.
    argv = ["docker", "buildx", "build", "--builder", _context(), "--provenance=false", "--tag", pin.image]
    contexts = {
        "wheels": wheel_folder,
        "locks": lock_folder,
        "entrypoints": ENTRYPOINTS,
        "bindings": BINDINGS,
        "kernels": KERNELS,
    }
    for name, folder in contexts.items():
        argv += ["--build-context", f"{name}={folder}"]
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    for name, value in image_labels.items():
        argv += ["--label", f"{name}={value}"]
    return [*argv, str(IMAGES)]


def labels(pin: Pin, ground: Base, versions: Mapping[str, str], inputs: str) -> dict[str, str]:
    """OCI's own labels (image-spec, annotations) and the stack's: the pin and the version of every wheel."""
    commit, created, source = revision()
    return {
        "org.opencontainers.image.title": "cpu-train-stack",
        "org.opencontainers.image.description": "bf16 fine-tuning of Hugging Face transformers on CPU clusters",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": f"{project_version()}-{pin.name}",
        REVISION_LABEL: commit,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.source": source,
        "org.opencontainers.image.base.name": pin.base.partition("@")[0] or f"debian:{pin.debian.suite}",
        "org.opencontainers.image.base.digest": ground.digest,
        f"{LABEL}.pin": pin.name,
        f"{LABEL}.base-source": ground.source,
        f"{LABEL}.debian": str(pin.debian.number),
        f"{LABEL}.python": pin.python,
        f"{LABEL}.torch-source": pin.torch_source,
        CCL_LABEL: pin.ccl,
        **({ADVISORIES_LABEL: " ".join(advisory.id for advisory in pin.advisories)} if pin.advisories else {}),
        f"{LABEL}.oneccl": pin.oneccl,
        f"{LABEL}.versions": json.dumps(dict(sorted(versions.items())), separators=(",", ":")),
        INPUTS_LABEL: inputs,
    }


def project_version() -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def inputs_sha256(pin: Pin, ground: Base) -> str:
    """The sum of everything that decides what is in the image: pin, base, lock, recipe and run-side package."""
    total = hashlib.sha256()
    facts = [
        pin.name,
        pin.python,
        pin.tcmalloc_package,
        pin.ccl,
        pin.oneccl,
        *pin.requirements,
        *pin.build_requirements,
        ground.digest,
        project_version(),
        advisories.document(pin.advisories),
    ]
    total.update("\n".join(facts).encode())
    recipe = [
        locks.path_of(pin),
        locks.build_path_of(pin),
        *_files(IMAGES),
        *_files(ENTRYPOINTS),
        BINDINGS / "build.py",
        *_files(BINDINGS / "oneccl_bindings_for_pytorch"),
        *_files(BINDINGS / "src"),
        *sorted(KERNELS.glob("*.[ch]pp")),  # a library may lie beside them
    ]
    for path in recipe:
        total.update(f"\n{path.relative_to(ROOT)} {path.stat().st_mode & 0o111:o} ".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def inspect(reference: str) -> tuple[str, dict[str, str], int] | None:
    """ID, labels and size in bytes of a local image; None if there is none."""
    argv = ["docker", "image", "inspect", "--format", "{{json .}}", reference]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None
    document = json.loads(result.stdout)
    return document["Id"], document["Config"].get("Labels") or {}, document["Size"]


def _files(folder: Path) -> Iterator[Path]:
    """The recipe's files; other pins' locks and rows are not inputs of this pin, nor are the tools' caches."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts[:-1]
        cached = any(part == "__pycache__" or part.startswith(".") for part in inner)
        other = cached or path.parent == locks.LOCKS or path.name in NO_INPUTS
        if path.is_file() and not other:
            yield path


def _remove_untagged(identifier: str) -> None:
    """The image that the tag named before, unless another tag or a container still uses it."""
    argv = ["docker", "image", "ls", "--quiet", "--no-trunc", "--filter", "dangling=true"]
    dangling = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    if identifier in dangling:
        subprocess.run(["docker", "image", "rm", identifier], capture_output=True, check=False)


def _context() -> str:
    argv = ["docker", "context", "show"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip() or "default"


def revision() -> tuple[str, str, str]:
    """Commit, commit time (RFC 3339) and origin of the checkout; "unknown" where it is not one."""

    def git(*arguments: str) -> str:
        if shutil.which("git") is None:
            return ""
        argv = ["git", "-C", str(ROOT), *arguments]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    if commit and git("status", "--porcelain"):
        commit += DIRTY
    # An origin URL may contain a token: keep only what follows the last @.
    origin = git("config", "--get", "remote.origin.url").rpartition("@")[2]
    return commit or "unknown", git("log", "-1", "--format=%cI") or "unknown", origin or "unknown"


def _buildx(pin: Pin, argv: list[str], say: Say) -> None:
    """Runs buildx: its own display on a terminal, otherwise a log file and, after a failure, its last lines."""
    environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
    if sys.stderr.isatty():
        if subprocess.run(argv, env=environ, check=False).returncode != 0:
            raise UsageError(f"building {pin.image} failed: see the step above")
        return
    log = CACHE / "logs" / f"build-{pin.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        argv = [*argv[:3], "--progress=plain", *argv[3:]]
        returncode = subprocess.run(argv, env=environ, stdout=stream, stderr=stream, check=False).returncode
    if returncode != 0:
        for line in log.read_text(encoding="utf-8").splitlines()[-15:]:
            say(line)
        raise UsageError(f"building {pin.image} failed: see the lines above; the complete log is {log}")
