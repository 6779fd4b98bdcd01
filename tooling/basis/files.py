"""Files that several processes use: hashes, atomic writes, and locks."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import file_digest
from pathlib import Path

from cpu_train_stack.machine import files
from tooling.basis.errors import UsageError


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def create_writable(folder: Path) -> None:
    """Create a folder unless it exists. Raises OSError, also if this user cannot write to it."""
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Raises OSError if this user cannot create files in the folder."""
    tempfile.TemporaryFile(dir=folder).close()


def write_atomic(path: Path, text: str) -> None:
    """Replace a file atomically, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, text)


def write_output(path: Path, text: str, option: str) -> None:
    """Write the file that the user gave with `option`. A link's target is replaced, never the link.

    Writes directly to devices and pipes, and to standard output under any of its names. Raises UsageError.
    """
    try:
        if path.exists() and os.path.samestat(path.stat(), os.fstat(1)):
            sys.stdout.write(text)
        elif path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            write_atomic(path.resolve(), text)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{option} {path} cannot be written ({reason}): choose another file") from error


@contextmanager
def scratch(parent: Path, prefix: str = ".scratch-") -> Iterator[Path]:
    """A private folder that is deleted at the end. Also deletes those of commands that were killed."""
    parent.mkdir(parents=True, exist_ok=True)
    with locked(parent, waiting=lambda: None):
        for left in parent.glob(f"{prefix}*"):
            with suppress(OSError, LockedError), locked(left, waiting=None):
                _remove(left)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        mine = ExitStack()
        mine.enter_context(locked(folder, waiting=None))
    try:
        with mine:
            yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Delete a folder with any content, as of an image. For shutil, folders can be nested too deeply."""

    def run(*command: str) -> int:
        return subprocess.run([*command, "--", folder], stderr=subprocess.DEVNULL, check=False).returncode

    if run("rm", "-rf") != 0:  # folders that may not be written to
        run("chmod", "-R", "u+rwX")
        run("rm", "-rf")


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold an exclusive lock on the file or folder `path`. The lock ends with the process, even if it is killed.

    If another process holds the lock, call `waiting` and wait. Without `waiting`, raise LockedError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_folder = path.is_dir() and not path.is_symlink()
    # In a folder that others can write to, such as /run/lock, the file may be a link: never change what it names.
    flags = os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT
    file = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise LockedError from None
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
