"""`./inv export`: an image as files, for sites without Docker."""

import errno
import hashlib
import io
import json
import os
import posixpath
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import FULL_DISK, UsageError
from cpu_train_stack.cli.files import scratch
from cpu_train_stack.cli.printable import last_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.cli.signals import die_with_parent
from tooling.basis.paths import CACHE
from tooling.engine import docker
from tooling.engine.api import PODMAN, Engine
from tooling.engine.docker import LocalImage
from tooling.image.choice import Choice

FORMATS = ("oci", "docker", "tar", "charliecloud", "apptainer", "enroot")
# The formats that a program of this name writes, and what to do without it.
_PROGRAMS = {
    "apptainer": (
        "use --format docker, and on a machine with Apptainer run apptainer build IMAGE.sif docker-archive:FILE"
    ),
    "enroot": "push the image, and on a machine with enroot run enroot import docker://REGISTRY#IMAGE",
}
# In the root file system of tar and charliecloud: the image's ID and labels. The other formats have them anyway.
FACTS = "opt/cpu-train-stack/image.json"
# charliecloud's own file: ch-run --set-env reads the image's variables there.
ENVIRONMENT = "ch/environment"
# What the name of the folder beside the output begins with, in which the output is written.
_DRAFT = ".cpu-train-stack-export-"
# Only root can make the devices that an engine adds to a container's /dev.
_NO_DEVICES = ("--anchored", "--exclude=dev/*")
# charliecloud mounts the host's folders and files on these.
_FOLDERS = ("dev", "proc", "sys", "tmp", "home", "mnt")
_FILES = ("etc/hosts", "etc/resolv.conf")


def check(form: str, output: str) -> Path:
    """The path to write. Raises UsageError."""
    if form not in FORMATS:
        raise UsageError(f"--format is {form!r}, expected one of {', '.join(FORMATS)}")
    path = Path(output)
    with _explained(path):  # a folder above it may not be entered
        if not output or not path.absolute().parent.is_dir():
            found = repr(output) if output else "missing"
            raise UsageError(f"--output is {found}, expected a new path in a folder that exists")
        _check_new(path)
    if form in _PROGRAMS and shutil.which(form) is None:
        raise UsageError(f"{form} is not on PATH: install it, or {_PROGRAMS[form]}")
    return path


def run(choice: Choice, form: str, output: str) -> None:
    """Write the image to the new path `output`. Raises UsageError, and leaves nothing behind then."""
    path = check(form, output)
    with _draft(path) as draft:  # before the build, which can take minutes
        engine, image = choice.ensure()
        found = docker.read_image_at(engine.endpoint, image.id)
        say(f"writing {output}")
        with _explained(path):
            _WRITERS[form](engine, found, draft)
            _check_new(path)  # another export may have written it
            draft.rename(path)
    say(f"wrote {output} ({form}, image {found.id})")


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A new path of the same name, in a private folder beside it that is deleted at the end.

    Also removes what exports that were killed have left, in other folders too.
    """
    docker.remove_left()
    records, parent = CACHE / "exports", path.absolute().parent
    for left in records.glob("*"):
        _clear(left)
    record = records / hashlib.sha256(os.fsencode(parent)).hexdigest()
    files.write_with_folder(record, os.fsdecode(parent))
    with _explained(path):
        private = ExitStack()
        folder = private.enter_context(scratch(parent, _DRAFT))
    with private:
        yield folder / path.name
    _clear(record)


def _clear(record: Path) -> None:
    """Delete the drafts of exports that were killed, in the folder that `record` names."""
    with suppress(OSError):
        folder = Path(record.read_text(encoding="utf-8", errors="surrogateescape"))
        files.clear_scratch(folder, _DRAFT)
        if not any(folder.glob(f"{_DRAFT}*")):
            record.unlink()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {error.strerror}: choose another path") from error


def _check_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError(f"--output is '{path}', which exists, expected a new path in a folder that exists")


def _docker(engine: Engine, image: LocalImage, path: Path) -> None:
    _piped([*_save(engine, "--format=docker-archive"), f"--output={path}", image.id])


def _oci(engine: Engine, image: LocalImage, path: Path) -> None:
    """docker image save writes an OCI layout, and Docker's own manifest.json beside it."""
    _unpack([*_save(engine, "--format=oci-archive", "--uncompressed"), image.id], path)
    (path / "manifest.json").unlink(missing_ok=True)
    (path / "repositories").unlink(missing_ok=True)
    if not (path / "oci-layout").is_file():
        raise UsageError("docker image save wrote no OCI layout, expected Docker 25 or later: use --format docker")


def _save(engine: Engine, *podmans: str) -> tuple[str, ...]:
    """The engine's command that saves an image. Docker has one format, which is both of podman's.

    `podmans`: podman's options.
    """
    return (*engine.client, "image", "save", *(("--quiet", *podmans) if engine.name == PODMAN else ()))


def _tar(engine: Engine, image: LocalImage, path: Path) -> None:
    with docker.created(image, engine.client) as name:
        _piped([*engine.client, "container", "export", f"--output={path}", name])
    with tarfile.open(path, "a") as archive:
        _check_no_link(archive)
        _add(archive, FACTS, facts(image))


def _check_no_link(archive: tarfile.TarFile) -> None:
    """Raises UsageError if a folder of FACTS is a link in the image: unpacking the archive would follow it."""
    way = {FACTS, *map(str, PurePosixPath(FACTS).parents)}
    for member in archive:
        if (member.issym() or member.islnk()) and posixpath.normpath(f"/{member.name}").lstrip("/") in way:
            raise UsageError(
                f"the image's /{member.name} is a link, expected a path that export can complete: use --format oci"
            )


def _charliecloud(engine: Engine, image: LocalImage, path: Path) -> None:
    with docker.created(image, engine.client) as name:
        _unpack([*engine.client, "container", "export", name], path, *_NO_DEVICES)
    _remove_devices(path)
    try:
        _complete(image, path)
    except OSError as error:
        if error.filename is None or error.errno in FULL_DISK:
            raise
        found = Path(error.filename).relative_to(path)
        raise UsageError(
            f"the image's /{found} {error.strerror}, expected a path that export can complete: use --format oci"
        ) from error


def _complete(image: LocalImage, path: Path) -> None:
    """Add the mount points and our own files. The image may contain links to files of this machine."""
    for folder in _FOLDERS:
        os.close(files.open_folder_below(path, folder, create=True))
    for file in _FILES:
        os.close(files.open_below(path, file, os.O_CREAT))
    for file, text in ((FACTS, facts(image)), (ENVIRONMENT, environment(image))):
        with os.fdopen(files.open_below(path, file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), "w") as stream:
            stream.write(text)


def _remove_devices(folder: Path) -> None:
    """Remove the devices that an image brings: root's tar would create them for every user of this machine."""
    _piped(["find", str(folder), "(", "-type", "b", "-o", "-type", "c", ")", "-delete"])


def _apptainer(engine: Engine, image: LocalImage, path: Path) -> None:
    archive = path.with_name(f"{path.name}.archive")
    _docker(engine, image, archive)
    _piped(["apptainer", "build", str(path), f"docker-archive:{archive}"])


def _enroot(engine: Engine, image: LocalImage, path: Path) -> None:
    """The image's ID and labels are comments in /etc/rc."""
    scheme = "podman" if engine.name == PODMAN else "dockerd"
    _piped(["enroot", "import", f"--output={path}", f"{scheme}://{image.id}"])


_WRITERS: dict[str, Callable[[Engine, LocalImage, Path], None]] = {
    "oci": _oci,
    "docker": _docker,
    "tar": _tar,
    "charliecloud": _charliecloud,
    "apptainer": _apptainer,
    "enroot": _enroot,
}


def facts(image: LocalImage) -> str:
    """The image's ID and labels, as JSON."""
    return json.dumps({"image": image.id, "labels": dict(image.labels)}, indent=2) + "\n"


def environment(image: LocalImage) -> str:
    """The image's variables, as ch-run --set-env reads them."""
    return "".join(f"{entry}\n" for entry in image.configuration.get("Env") or ())


def _piped(command: Sequence[str]) -> None:
    """Run a command that writes the file. Raises UsageError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=die_with_parent)
    if done.returncode != 0:
        raise UsageError(f"{' '.join(command[:3])} failed: {last_line(done.stderr)}")


def _unpack(command: Sequence[str], folder: Path, *options: str) -> None:
    """Unpack the archive that the command writes to its output, with options of tar.

    Raises UsageError if the command fails, and OSError if tar does, as on a full disk.
    """
    folder.mkdir()
    # Files of other users become this user's: the image needs none of its owners. Root's files would stay setgid.
    tar = ["tar", "--extract", "--no-same-owner", "--no-same-permissions", *options, f"--directory={folder}"]
    with tempfile.TemporaryFile() as errors:
        # Only tar reads the pipe: if tar ends early, the command's output ends with "broken pipe".
        with subprocess.Popen(tar, stdin=subprocess.PIPE, stderr=errors, preexec_fn=die_with_parent) as reader:
            writer = subprocess.run(
                command, stdout=reader.stdin, stderr=subprocess.PIPE, check=False, preexec_fn=die_with_parent
            )
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    message = writer.stderr.decode(errors="replace")
    tar_failed = reader.returncode and "broken pipe" in message.lower()
    if writer.returncode not in (0, -signal.SIGPIPE) and not tar_failed:
        raise UsageError(f"{' '.join(command[:3])} failed: {last_line(message)}")
    if reader.returncode:  # the last of several lines only says that tar has failed
        raise OSError(errno.EIO, lines[-2:][0] if lines else f"tar ended with {reader.returncode}")


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text.encode()), 0o644
    archive.addfile(member, io.BytesIO(text.encode()))
