"""The emulated machine as a Docker image, built once for each version of Bochs, of the patch and of the base."""

import hashlib
import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.printable import last_line
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.checks.emulate import patch
from tooling.engine import docker
from tooling.image import build
from tooling.image.base import Base

MACHINE = Path(__file__).with_name("machine")
TAG = "cpu-train-stack-emulator"
REPOSITORY = "https://github.com/bochs-emu/Bochs"
# Large, and not needed.
_LEFT_OUT = (":(exclude)bochs/bios/OVMF", ":(exclude)bochs/docs-html")


def checkout(folder: str | None) -> Path:
    """The folder with Bochs' git repository. Raises UsageError if it is none."""
    get = f"get it with git clone {REPOSITORY}, and name the folder"
    if folder is None:
        raise UsageError(f"--bochs is missing, expected a git checkout of Bochs: {get}")
    where = Path(folder).expanduser().resolve()
    if _git(where, "rev-parse", "--verify", "--quiet", "HEAD:bochs/cpu/avx/amx.cc").returncode != 0:
        raise UsageError(f"--bochs {folder}: found no git checkout of Bochs with AMX: {get}")
    return where


def ensure(folder: Path, base: Base) -> str:
    """The tag of the emulated machine's image. `folder`: the result of `checkout`."""
    tag = f"{TAG}:{_content(folder, base)}"
    if docker.find_image(tag):
        return tag
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bochs-") as scratch:
        say("building the emulated machine: some minutes, once")
        _unpack(folder, Path(scratch))
        argv = ["docker", "buildx", "build", "--provenance=false", f"--tag={tag}"]
        argv += [f"--build-arg=BASE={base.reference}", f"--build-context=bochs={scratch}/bochs", str(MACHINE)]
        build.buildx(argv, "the emulated machine", "emulator")
    return tag


def _content(folder: Path, base: Base) -> str:
    """Changes with everything that the image is built from."""
    total = hashlib.sha256(_git(folder, "rev-parse", "HEAD:bochs").stdout + base.digest.encode())
    for path in (Path(patch.__file__), *sorted(MACHINE.iterdir())):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:12]


def _unpack(folder: Path, target: Path) -> None:
    """Write the patched sources of the commit that is checked out."""
    archived = _git(folder, "archive", "HEAD", "bochs", *_LEFT_OUT)
    if archived.returncode != 0:
        raise UsageError(f"git archive of {folder} failed: {last_line(archived.stderr.decode())}")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(target, filter="data")
    root = target / "bochs"
    names = {change.file for change in patch.CHANGES}
    for name, text in patch.patched({name: (root / name).read_text("latin-1") for name in names}).items():
        (root / name).write_text(text, "latin-1")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # The user named the folder, whoever owns it.
    argv = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    return subprocess.run(argv, capture_output=True, check=False)
