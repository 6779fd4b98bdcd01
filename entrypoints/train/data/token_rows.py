"""Rows of tokens, one after the other in memory, or in a file without a name if there are many."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from entrypoints.cli.errors import UsageError

# Up to this many bytes stay in memory. More are in a file, which is read and not mapped: mapped pages would count
# as memory of the rank. With 32 MiB instead of 4, a rank needed 80 MB more, because a growing array is copied.
IN_MEMORY = 4 << 20
# The place of every 64th row is stored. The places of the rows in between follow from their lengths.
_STRIDE = 64
_BYTES = 4  # of an int32


class TokenRows:
    """Each row is an int32 array [columns, tokens], such as the tokens and their labels.

    The file is in TMPDIR, has no name and ends with the process. A row takes four bytes of memory, for its length.
    """

    def __init__(self, rows: Iterable[Sequence[Sequence[int]]], columns: int) -> None:
        """`rows`: each has `columns` sequences of numbers, of one length. Raises UsageError for a full disk."""
        self.lengths = array("i")
        self._columns = columns
        self._starts = array("q")  # of every row whose number is a multiple of _STRIDE, in tokens
        self._memory = bytearray()
        self._file: Any = None
        place = 0
        for number, row in enumerate(rows):
            if number % _STRIDE == 0:
                self._starts.append(place)
            for values in row:
                self._memory += numpy.asarray(values, dtype=numpy.int32).tobytes()
            self.lengths.append(len(row[0]))
            place += len(row[0])
            if len(self._memory) > IN_MEMORY:
                self._write()
        if self._file is not None:
            self._write()

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open while the rows are in use
            while self._memory:
                del self._memory[: self._file.write(self._memory)]
        except OSError as error:
            raise UsageError(
                f"the tokens of the data cannot be written to a temporary file ({error.strerror or error}): set "
                f"TMPDIR to a folder with {self._columns * _BYTES} bytes of free space for each token"
            ) from error

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Any:
        row = range(len(self))[row]
        tokens_before = self._starts[row // _STRIDE] + sum(self.lengths[row - row % _STRIDE : row])
        begin, size = (tokens * self._columns * _BYTES for tokens in (tokens_before, self.lengths[row]))
        if self._file is None:
            found = self._memory[begin : begin + size]
        else:
            found = bytearray(os.pread(self._file.fileno(), size, begin))
        return numpy.frombuffer(found, dtype=numpy.int32).reshape(self._columns, -1)

    def __getstate__(self) -> dict[str, Any]:
        """For a data loader's worker that is not forked: it opens the file through this process."""
        file = self._file and f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        return {**self.__dict__, "_file": file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._file is not None:
            self._file = open(self._file, "rb")  # noqa: SIM115, PTH123 - open while the rows are in use
