"""Reads the records of a running job again and again, only what is new each time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from cpu_train_stack.cli import files
from cpu_train_stack.records import job, record
from cpu_train_stack.records.job import Rank, RecordedJob

# Of a file that is longer at the first look, only the start and the end are read. Rank 0's is read in full,
# because its losses are shown from the first step on.
_READ_AT_FIRST = 256 << 10
_READ_AT_ONCE = 64 << 20
# The first line begins with its time, in which the files of two jobs differ.
_HEAD_BYTES = 64
# In which the newest records are looked for.
_MOST_FOLDERS = 10_000
_MOST_FILES = 100_000


class _File:
    """One rank's file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = self._head = b""
        self._size = 1
        self._rank = Rank()

    def read(self, whole: bool, most: int) -> Rank:
        """Read what has been appended, and return everything so far: of more than `most` records the last ones, or
        with `whole` all of them, joined.

        A file with another beginning, or a shorter one, is another job's.
        """
        # Another job may have removed it.
        with suppress(OSError), job.opened(self._path.parent.parent, self._path.name) as file:
            self._read(file, whole, most)
        return self._rank

    def _read(self, file: BinaryIO, whole: bool, most: int) -> None:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD_BYTES)
        if size < self._offset or not head.startswith(self._head):
            self._offset, self._rest, self._size, self._rank = 0, b"", 1, Rank()
        self._head = head
        file.seek(0)
        if not self._offset and size > _READ_AT_FIRST and not whole:
            self._rank.add(file.readline(_READ_AT_FIRST))
            file.seek(size - _READ_AT_FIRST)
            file.readline(_READ_AT_FIRST)  # the rest of a line
        else:
            file.seek(self._offset)
        end = file.tell() + (_READ_AT_ONCE if whole else job.BYTES_AT_ONCE)
        while file.tell() < end and (new := file.read(job.BYTES_AT_ONCE)):
            lines, self._rest = job.complete(self._rest + new)
            self._rank.add(lines)
            if whole:
                self._size = self._rank.shorten(self._size, most)
            else:
                del self._rank.steps[:-most], self._rank.samples[:-most]
        self._offset = file.tell()


class Tail:
    """The records below a folder, or below the folder in it that was written to last."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._files: dict[Path, _File] = {}

    def read(self) -> RecordedJob | None:
        """The job now; None without records."""
        output = newest(self._output)
        paths = [output / record.FOLDER / name for name in job.files_of(output)] if output is not None else []
        if output is None or not paths:
            return None
        self._files = {path: self._files.get(path) or _File(path) for path in paths}
        most = max(job.FEWEST_RECORDS, job.MOST_RECORDS // len(paths))
        first, *others = (self._files[path] for path in paths)
        read = [
            first.read(whole=True, most=job.MOST_RECORDS),
            *(file.read(whole=False, most=most) for file in others),
        ]
        return job.of(output, read)


def newest(output: Path) -> Path | None:
    """The folder with the records that were written to last: `output`, or one up to two levels below it."""
    found = (
        folder / record.FOLDER / name
        for folder in folders(output)
        if not (folder / record.FOLDER).is_symlink()  # the job may have put a link to another folder there
        for name in job.files_of(folder)
    )
    # A new job removes the files of the one before.
    latest = max(islice(found, _MOST_FILES), key=files.written, default=None)
    return latest.parent.parent if latest is not None else None


def folders(output: Path) -> list[Path]:
    """`output`, and the folders up to two levels below it, none of them through a link."""
    found = level = [output]
    for _ in range(2):
        level = [*islice((inner for folder in level for inner in _inner(folder)), _MOST_FOLDERS)]
        found = [*found, *level]
    return found


def _inner(folder: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (folder / one.name for one in entries if one.is_dir(follow_symlinks=False))
