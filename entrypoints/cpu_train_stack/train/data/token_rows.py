"""Rows of tokens, one after the other in memory, or in a file if there are many."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.token_files import Draft, Stored, TokenFile

# Up to this many bytes stay in memory. More are in a file, which is read and not mapped: mapped pages would count
# as memory of the rank. With 32 MiB instead of 4, a rank needed 80 MB more, because a growing array is copied.
IN_MEMORY = 4 << 20
# The place of every 64th row is stored. The places of the rows in between follow from their lengths.
_STRIDE = 64
_BYTES = 4  # of an int32


class TokenRows:
    """Each row is an int32 array [columns, tokens], such as the tokens and their labels.

    Without `shared`, the file is in TMPDIR, has no name and ends with the process. With `shared`, it may have the
    tokens already: `rows` is then not read to its end. A row takes four bytes of memory, for its length.
    """

    def __init__(
        self,
        rows: Iterable[Sequence[Sequence[int]]],
        columns: int,
        counts: Counter[str] | None = None,
        shared: TokenFile | None = None,
    ) -> None:
        """`rows`: each has `columns` sequences of numbers, of one length. `counts`: what `rows` counts.

        Raises UsageError for a full disk.
        """
        self.lengths = array("i")
        self._columns = columns
        self._memory = bytearray()
        self._file: Any = None
        self._draft: Draft | None = None
        counts = Counter() if counts is None else counts
        try:
            stored = self._fill(rows, shared)
            if stored is not None:
                counts.clear()
                counts.update(stored.counts)
            elif self._draft is not None:
                self._publish(self._draft, counts)
        finally:
            if self._draft is not None:
                self._draft.delete()
        # Of every row whose number is a multiple of _STRIDE, in tokens.
        self._starts = array("q", accumulate(self._sums(), initial=0))

    def _fill(self, rows: Iterable[Sequence[Sequence[int]]], shared: TokenFile | None) -> Stored | None:
        """Take the tokens from `rows`, or all of them from `shared`, which is returned then."""
        for row in rows:
            for values in row:
                self._memory += numpy.asarray(values, dtype=numpy.int32).tobytes()
            self.lengths.append(len(row[0]))
            if len(self._memory) <= IN_MEMORY:
                continue
            if self._file is None and shared is not None:
                claimed = shared.claim(self._memory)
                if isinstance(claimed, Stored):
                    self.lengths, self._file = claimed.lengths, claimed.file
                    self._memory.clear()
                    return claimed
                if claimed is not None:
                    self._draft, self._file = claimed, claimed.file
            self._write()
        if self._file is not None:
            self._write()
        return None

    def _sums(self) -> Iterator[int]:
        """The tokens of each _STRIDE rows."""
        return (sum(self.lengths[row : row + _STRIDE]) for row in range(0, len(self), _STRIDE))

    def _publish(self, draft: Draft, counts: Counter[str]) -> None:
        try:
            draft.publish(self.lengths, counts)
            self._draft = None
        except OSError as error:
            self._leave(draft, error)

    def _leave(self, draft: Draft, error: OSError) -> None:
        """Continue in a file without a name."""
        draft.delete(error)
        self._draft, self._file = None, None
        rest, self._memory = self._memory, bytearray()
        with draft.file:
            for block in draft.blocks():
                self._memory += block
                self._write()
        self._memory += rest

    def _write(self) -> None:
        if self._draft is not None:
            try:
                self._draft.write(self._memory)
                self._memory.clear()
                return
            except OSError as error:
                self._leave(self._draft, error)
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
