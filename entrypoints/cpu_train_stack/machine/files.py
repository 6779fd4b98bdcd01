"""Read files that may be missing or change at any time, and replace files atomically. Torch-free."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

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
