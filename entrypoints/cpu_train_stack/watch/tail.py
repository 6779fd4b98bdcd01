"""Reads the records of a running job again and again, only what is new each time."""

from __future__ import annotations

import os
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.records import job, record
from cpu_train_stack.records.job import Rank, RecordedJob

# Of a file that is longer at the first look, only the start and the end are read. Rank 0's is read in full,
# because its losses are shown from the first step on.
_READ_AT_FIRST = 256 << 10
_READ_AT_ONCE = 64 << 20
# The first line begins with its time, in which the files of two jobs differ.
_HEAD_BYTES = 64


class _File:
    """One rank's file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = self._head = b""
        self._rank = Rank()

    def read(self, whole: bool) -> Rank:
        """Read what has been appended, and return everything so far.

        A file with another beginning, or a shorter one, is another job's.
        """
        try:
            with job.opened(self._path.parent.parent, self._path.name) as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(_HEAD_BYTES)
                if size < self._offset or not head.startswith(self._head):
                    self._offset, self._rest, self._rank = 0, b"", Rank()
                self._head = head
                file.seek(0)
                if not self._offset and size > _READ_AT_FIRST and not whole:
                    self._rank.add(file.readline(_READ_AT_FIRST))
                    file.seek(size - _READ_AT_FIRST)
                    file.readline(_READ_AT_FIRST)  # the rest of a line
                else:
                    file.seek(self._offset)
                new = file.read(_READ_AT_ONCE)
                self._offset = file.tell()
        except OSError:
            return self._rank
        lines, self._rest = job.complete(self._rest + new)
        return self._rank.add(lines)


class Tail:
    """The records below a folder, or below the folder in it that was written to last."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._files: dict[Path, _File] = {}

    def read(self) -> RecordedJob | None:
        """The job now; None without records."""
        output = newest(self._output)
        if output is None:
            return None
        paths = sorted((output / record.FOLDER).glob("rank-*.jsonl"))
        self._files = {path: self._files.get(path) or _File(path) for path in paths}
        return job.of(output, (self._files[path].read(whole=path == paths[0]) for path in paths))


def newest(output: Path) -> Path | None:
    """The folder with the records that were written to last: `output`, or one up to two levels below it."""
    found = [
        path
        for pattern in ("", "*/", "*/*/")
        for path in output.glob(f"{pattern}{record.FOLDER}/rank-*.jsonl")
        # The job may have put a link to another folder there.
        if not any(folder.is_symlink() for folder in path.parents if output in folder.parents)
    ]
    # A new job removes the files of the one before.
    return max(found, key=files.written).parent.parent if found else None
