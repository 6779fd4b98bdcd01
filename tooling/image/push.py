"""`./inv push`: pushes an image that was built from this commit, tested on this machine and inspected.

A push never moves a tag, except the tag PIN with --alias. It writes image.lock.json last, after all checks.
"""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import check_writable, sha256_of, write_with_folder
from cpu_train_stack.cli.say import say
from tooling.basis.paths import ROOT
from tooling.engine import api, docker
from tooling.image import build, inspect, recipe, sign
from tooling.image import lock as image_lock
from tooling.image.lock import ImageLock
from tooling.image.registry import Registry, Target
from tooling.pins import status
from tooling.pins.pin import Pin
from tooling.wheels import locks

LOCK_FILE = "image.lock.json"
SBOM_FILE = "image.spdx.json"
REVISION_CHARACTERS = 12


def run(
    target: str, pin: Pin, alias: bool, output: str, key: str | None = None, unsupported: bool = False
) -> None:
    """Check, push and verify the image, then write image.lock.json and image.spdx.json to the folder `output`.

    `key`: sign the image with it, and attach its provenance and its bill of materials. `unsupported`: also if
    Debian no longer supports its release.
    """
    if not target:
        raise UsageError("push needs --registry HOST[:PORT]/NAME")
    where = Target.parse(target)
    folder = Path(output)
    check_folder(folder)
    if key is not None:
        sign.check_key(key)
        if (ended := pin.debian.ended(datetime.now(UTC).date())) and not unsupported:
            raise UsageError(f"--sign: {ended}; to sign it anyway, add --unsupported")
    revision = clean_revision()
    repository = Registry(api.ensure().endpoint, where)
    tag = tag_of(pin.name, revision)
    # Before the long checks; the push checks again. A push that failed after it sent the image can be repeated.
    previous = docker.find_image(pin.image)
    if previous and previous.labels.get(recipe.REVISION_LABEL) != revision:
        previous = None
    repository.find(tag, previous.id if previous else None)
    image = build.build(pin, of_this_commit=True)
    content = inspect.content_sha256(image.id)
    if not status.is_tested(content):
        raise UsageError(f"{image.tag} is untested on this machine: run ./inv demo {pin.options} first")
    say(f"inspecting {image.tag}: running its doctor and listing its packages")
    found = inspect.inventory(image.id)
    if problem := inspect.mismatch(pin, found, inspect.doctor(image.id)):
        raise UsageError(f"{image.tag} does not match its row: {problem}; nothing was pushed")
    from tooling.image import sbom  # spdx-tools takes 0.4 s to import

    labels = docker.read_image(image.id).labels
    if labels[recipe.REVISION_LABEL] != revision:
        raise UsageError(
            f"{image.tag} was built from {labels[recipe.REVISION_LABEL]}, expected {revision}: the tree changed "
            "during the push; commit, and push again; nothing was pushed"
        )
    bill = sbom.document(f"{where}:{tag}", content, labels, found)
    # The tag is derived from the running image, not from the build arguments.
    tag = tag_of(found.pin, labels[recipe.REVISION_LABEL])
    say(f"pushing {where}:{tag}, {image.size_bytes / 1e9:.2f} GB")
    digest = repository.push(image.id, tag)
    if key is not None:
        sign.sign(f"{where}@{digest}", key, sign.provenance(labels, _locks(pin)), bill)
    if alias:
        repository.push(image.id, found.pin, moving=True)
    lock = ImageLock(
        image=f"{where}@{digest}",
        tag=f"{where}:{tag}",
        pin=found.pin,
        revision=labels[recipe.REVISION_LABEL],
        labels=labels,
        sbom_sha256=hashlib.sha256(bill.encode()).hexdigest(),
    )
    write_with_folder(folder / SBOM_FILE, bill)
    image_lock.write(lock, folder / LOCK_FILE)
    say(f"pushed {where}:{tag} as {digest}; wrote {folder / LOCK_FILE} and {SBOM_FILE}")


def _locks(pin: Pin) -> dict[str, str]:
    """The sha256 of each lock that the image was built from, by the lock's name in the provenance."""
    paths = {"wheels' lock": locks.path_of(pin), "build wheels' lock": locks.build_path_of(pin)}
    if pin.added:
        paths["added wheels' lock"] = locks.added_path_of(pin)
    return {name: sha256_of(path) for name, path in paths.items()}


def check_folder(folder: Path) -> None:
    """Raises UsageError if no file can be written to the folder: before anything is pushed."""
    if not folder.is_dir():
        raise UsageError(f"--output is '{folder}', expected an existing folder")
    try:
        check_writable(folder)
    except OSError as error:
        raise UsageError(f"--output is '{folder}', expected a folder that is writable: {error.strerror}") from None


def tag_of(pin: str, revision: str) -> str:
    """<project version>-<pin>-<commit>."""
    return f"{recipe.project_version()}-{pin}-{revision[:REVISION_CHARACTERS]}"


def clean_revision() -> str:
    """The commit that is checked out. Raises UsageError if the tree has uncommitted changes."""
    revision = recipe.revision()[0]
    if recipe.has_another_owner():
        raise UsageError(
            f"'{ROOT}' belongs to another user, so git refuses to read it: become its owner, or run "
            f"git config --global --add safe.directory '{ROOT}'"
        )
    if revision == "unknown":
        raise UsageError("this is not a git checkout: the tag of a pushed image names the commit")
    if revision.endswith(recipe.DIRTY):
        raise UsageError("the tree is dirty (git status): commit first, because the tag names the commit")
    return revision
