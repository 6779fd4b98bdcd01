"""Files: those that may be missing or change at any time, atomic writes, hashes, and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError

# The largest document of another program that is read.
MOST_BYTES = 64 << 20


def text(path: Path) -> str:
    """The text of a file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def open_below(folder: Path, name: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file `name` in a folder whose content is not trusted.

    Follows no symbolic link below `folder`, and does not wait for a FIFO. With O_CREAT, creates missing folders.
    Raises OSError with the path that was refused.
    """
    path = Path(name)
    parent = open_folder_below(folder, str(path.parent), create=bool(flags & os.O_CREAT))
    try:
        return _open_entry(parent, path.name, flags, folder / path)
    finally:
        os.close(parent)


def open_folder_below(folder: Path, name: str, *, create: bool) -> int:
    """Like open_below(), for the folder `name`."""
    shown, descriptor = folder, os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for part in Path(name).parts:
        shown /= part
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            inner = _open_entry(descriptor, part, os.O_RDONLY | os.O_DIRECTORY, shown)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def read_below(folder: Path, name: str, most: int = MOST_BYTES) -> str:
    """The text of a small file as in open_below(). Raises OSError, also for a file of more than `most` bytes."""
    with os.fdopen(open_below(folder, name), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most:,} bytes", str(folder / name))
    return content.decode("utf-8", errors="replace")


def read_given(path: Path) -> str:
    """The text of a file that a user named. Raises OSError for one without an end, such as /dev/zero."""
    with path.open(encoding="utf-8") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"has more than {MOST_BYTES:,} bytes", str(path))
    return text


def parse_json(text: str) -> Any:
    """The JSON document. Raises ValueError for any other text, also for one with too many nested lists."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None


def _open_entry(folder: int, name: str, flags: int, shown: Path) -> int:
    try:
        opened = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=folder)
    except OSError as error:
        # The error of a link depends on the flags.
        reason = "is a symbolic link" if _is_link(name, folder) else f"cannot be opened ({error.strerror})"
        raise OSError(error.errno, reason, str(shown)) from None
    if not (flags & os.O_DIRECTORY or stat.S_ISREG(os.fstat(opened).st_mode)):
        os.close(opened)
        raise OSError(errno.EINVAL, "is not a regular file", str(shown))
    return opened


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def written(path: Path) -> float:
    """When a file was written to last, in seconds since the epoch; 0 if it does not exist or is not accessible."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def write_atomic(path: Path, text: str) -> None:
    """Replace a file: readers see either the old text or the new text. On OSError, no draft is left."""
    # Processes on several nodes may write it, with equal process IDs.
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("x", encoding="utf-8") as file:  # never through a link that somebody else put there
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def create_writable(folder: Path) -> None:
    """Create a folder unless it exists. Raises OSError, also if this user cannot write to it."""
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Raises OSError if this user cannot create files in the folder."""
    import tempfile  # here, because every rank imports this module

    tempfile.TemporaryFile(dir=folder).close()


def write_with_folder(path: Path, text: str) -> None:
    """write_atomic() that also creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)


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
            write_with_folder(path.resolve(), text)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{option} {path} cannot be written ({reason}): choose another file") from error


def clear_scratch(parent: Path, prefix: str = ".scratch-") -> None:
    """Delete the folders of `scratch` that no command holds."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError), _holding(left) as lock:
            if os.fstat(lock).st_uid == os.geteuid():
                _remove(left)


@contextmanager
def scratch(parent: Path, prefix: str = ".scratch-") -> Iterator[Path]:
    """A private folder that is deleted at the end. Also deletes those of commands that were killed."""
    import tempfile

    parent.mkdir(parents=True, exist_ok=True)
    clear_scratch(parent, prefix)
    with ExitStack() as mine:
        is_held = False
        while not is_held:  # another command may delete it before it is locked
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            with suppress(FileNotFoundError, BlockingIOError):
                mine.enter_context(_holding(folder))
                is_held = folder.exists()
        try:
            yield folder
        finally:
            _remove(folder)


@contextmanager
def _holding(folder: Path) -> Iterator[int]:
    """A descriptor of `folder` with an exclusive lock. Raises BlockingIOError if another process has the lock."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Delete a folder with any content, as of an image. For shutil, folders can be nested too deeply."""
    import subprocess

    def run(*command: str) -> int:
        return subprocess.run([*command, "--", folder], stderr=subprocess.DEVNULL, check=False).returncode

    if run("rm", "-rf") != 0:  # folders that may not be written to
        run("chmod", "-R", "u+rwX")
        run("rm", "-rf")


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`. The lock ends with the process, even if it is killed.

    If another process holds the lock, call `waiting` and wait. Without `waiting`, raise LockedError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a folder that others can write to, such as /run/lock, the file may be a link: never change what it names.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
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
