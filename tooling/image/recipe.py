"""The recipe of an image, which tooling.image.build follows: its inputs, the buildx command and the labels.

`inputs_sha256` hashes all inputs. A label has the hash: an image with the current hash is up to date.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cpu_train_stack.cli.files import write_with_folder
from cpu_train_stack.records.origin import HIDDEN, without_credentials
from tooling.basis.paths import IMAGES, ROOT
from tooling.engine import docker
from tooling.image.base import Base
from tooling.pins import advisories
from tooling.pins.pin import Pin
from tooling.wheels import locks

ENTRYPOINTS = ROOT / "entrypoints"
PACKAGE = ENTRYPOINTS / "cpu_train_stack"  # inside the image, in site_packages()
BINDINGS = ROOT / "bindings"
KERNELS = ROOT / "kernels"
LABEL = "cpu-train-stack"
# Files of images/ that are not inputs, because they describe all pins.
NO_INPUTS = ("versions.toml", "status.json")
PIN_LABEL = f"{LABEL}.pin"
SOURCE_LABEL = "org.opencontainers.image.source"
BASE_NAME_LABEL = "org.opencontainers.image.base.name"
BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
REVISION_LABEL = "org.opencontainers.image.revision"
DIRTY = "-dirty"
INPUTS_LABEL = f"{LABEL}.inputs-sha256"
CCL_LABEL = f"{LABEL}.ccl"
ADDED_LABEL = f"{LABEL}.added"
ADVISORIES_LABEL = f"{LABEL}.advisories"


def inputs_sha256(pin: Pin, base: Base) -> str:
    """The sha256 of all inputs of an image: pin, base, locks, Dockerfile, scripts and sources."""
    total = hashlib.sha256()
    facts = [
        pin.name,
        pin.python,
        pin.tcmalloc_package,
        pin.ccl,
        pin.oneccl,
        *pin.requirements,
        *pin.build_requirements,
        base.digest,
        project_version(),
        advisories.document(pin.advisories),
    ]
    total.update("\n".join(facts).encode())
    paths = [
        *([locks.added_path_of(pin)] if pin.added else []),
        locks.path_of(pin),
        locks.build_path_of(pin),
        *_files(IMAGES),
        *_files(ENTRYPOINTS),
        BINDINGS / "build.py",
        *_files(BINDINGS / "oneccl_bindings_for_pytorch"),
        *_files(BINDINGS / "src"),
        *sorted(KERNELS.glob("*.[ch]pp")),  # not the library, which may be in the same folder
    ]
    for path in paths:
        total.update(f"\n{path.relative_to(ROOT)} {0o111 if path.stat().st_mode & 0o100 else 0:o} ".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The input files of a folder: all but caches of tools, locks and NO_INPUTS."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts[:-1]
        cached = any(part == "__pycache__" or part.startswith(".") for part in inner)
        if path.is_file() and not (cached or path.parent == locks.LOCKS or path.name in NO_INPUTS):
            yield path


def stage_locks(pin: Pin, folder: Path) -> Path:
    """Copy the pin's locks to a folder without the locks of other pins, under the names in the Dockerfile.

    The lock of a user's own packages is in a folder of its own: it changes no layer of the row.
    """
    write_with_folder(folder / "row" / "lock.txt", locks.path_of(pin).read_text(encoding="utf-8"))
    write_with_folder(folder / "row" / "build-lock.txt", locks.build_path_of(pin).read_text(encoding="utf-8"))
    if pin.added:
        write_with_folder(folder / "added" / "lock.txt", locks.added_path_of(pin).read_text(encoding="utf-8"))
    return folder


def build_argv(
    pin: Pin,
    base: Base,
    wheel_folder: Path,
    lock_folder: Path,
    image_labels: Mapping[str, str],
    tag: str,
    options: Sequence[str] = (),
    added_wheels: Path | None = None,
) -> list[str]:
    """The buildx command. `options` come last and override others. Labels are last in the history: no layer.

    `added_wheels`: the folder of the wheels of a user's own packages. `lock_folder`: the result of `stage_locks`.
    """
    arguments = {
        "BASE": base.reference,
        "TCMALLOC_PACKAGE": pin.tcmalloc_package,
        "CCL": pin.ccl,
        "PYTHON": pin.python,
        "PIN": pin.name,
        "ADVISORIES": advisories.document(pin.advisories),
    }
    # The builder in the engine, which has the name of the context. Other builders do not see the engine's images.
    argv = ["docker", "buildx", "build", "--builder", _context(), "--provenance=false", "--tag", tag]
    argv += ["--target", "added" if added_wheels else "row", *options]  # an option may name another target
    contexts = {
        "wheels": wheel_folder,
        "locks": lock_folder / "row",
        "entrypoints": ENTRYPOINTS,
        "bindings": BINDINGS,
        "kernels": KERNELS,
    }
    if added_wheels:
        contexts |= {"added-wheels": added_wheels, "added-locks": lock_folder / "added"}
    for name, folder in contexts.items():
        argv += ["--build-context", f"{name}={folder}"]
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    for name, value in image_labels.items():
        argv += ["--label", f"{name}={value}"]
    return [*argv, str(IMAGES)]


def _context() -> str:
    return docker.call("context", "show").stdout.strip() or "default"


def labels(pin: Pin, base: Base, versions: Mapping[str, str], inputs: str) -> dict[str, str]:
    """OCI's labels (image-spec, annotations) and this project's: the pin and the version of every wheel."""
    commit, created, source = revision()
    return {
        "org.opencontainers.image.title": "cpu-train-stack",
        "org.opencontainers.image.description": "bf16 fine-tuning of Hugging Face transformers on CPU clusters",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": f"{project_version()}-{pin.name}",
        REVISION_LABEL: commit,
        "org.opencontainers.image.created": created,
        SOURCE_LABEL: source,
        BASE_NAME_LABEL: pin.base.partition("@")[0] or f"debian:{pin.debian.suite}",
        BASE_DIGEST_LABEL: base.digest,
        PIN_LABEL: pin.name,
        f"{LABEL}.base-source": base.source,
        f"{LABEL}.debian": str(pin.debian.number),
        f"{LABEL}.python": pin.python,
        f"{LABEL}.torch-source": pin.torch_source,
        CCL_LABEL: pin.ccl,
        **({ADVISORIES_LABEL: " ".join(advisory.id for advisory in pin.advisories)} if pin.advisories else {}),
        f"{LABEL}.oneccl": pin.oneccl,
        **({ADDED_LABEL: " ".join(locks.read_added(pin))} if pin.added else {}),
        f"{LABEL}.versions": json.dumps(dict(sorted(versions.items())), separators=(",", ":")),
        INPUTS_LABEL: inputs,
    }


def project_version() -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def revision() -> tuple[str, str, str]:
    """Commit, commit time (RFC 3339) and origin of the checkout. "unknown" if this folder is not a checkout.

    A folder in another checkout is none: the commit of the other one does not have its files.
    """

    def git(*arguments: str) -> str | None:
        result = _git(*arguments)
        return result.stdout.strip() if result.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel") if shutil.which("git") else None
    if not top or Path(top).resolve() != ROOT.resolve():
        return "unknown", "unknown", "unknown"
    commit = git("rev-parse", "HEAD")
    if commit and git("status", "--porcelain", "--untracked-files=all") != "":  # None: git status failed
        commit += DIRTY
    url = without_credentials(git("config", "--get", "remote.origin.url") or "")
    origin = re.split(r"[?#;]", url.replace(f"{HIDDEN}@", ""))[0]  # the user and the query may have a token
    return commit or "unknown", git("log", "-1", "--format=%cI") or "unknown", origin or "unknown"


def has_another_owner() -> bool:
    """Whether git refuses this checkout, because it belongs to another user."""
    return shutil.which("git") is not None and "dubious ownership" in _git("rev-parse").stderr


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv, environ = ["git", "-C", str(ROOT), *arguments], {**os.environ, "LC_ALL": "C"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environ)


def site_packages(pin: Pin) -> str:
    """The folder in the image that contains the libraries and the run-side package."""
    return f"/opt/venv/lib/python{pin.python}/site-packages"
