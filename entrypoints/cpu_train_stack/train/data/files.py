"""Read data files row by row: csv, tsv, json, jsonl, txt, all of them also compressed with gzip, and parquet.

Rows are read from the file each time they are needed, so that they are never all in memory; only the rows of a
JSON document are kept. This module uses neither torch nor datasets, so that each error names the file, the line
and the fix.

The readers of datasets (5.2 and 3.1 were compared) change values without an error. Its csv reader fills short
rows, and shifts the columns if every row has one value more than the header. Its JSON reader makes dates of texts
that look like dates, and floats of large integers. That of 3.1 refuses a column with values of several types, such
as messages whose content is a text or a list. Importing datasets takes a rank 0.8 CPU seconds and 82 MB.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable

from cpu_train_stack.cli.errors import UsageError, path_hint
from cpu_train_stack.train.data import json_files
from cpu_train_stack.train.data.json_files import Row
from cpu_train_stack.train.data.opening import GZIP, format_of, open_text, readable, suffix_of
from cpu_train_stack.train.data.remote import shown

_PARQUET = ".parquet"
# Parquet rows that are decoded at a time.
_BATCH = 1000


@dataclass(frozen=True)
class File:
    """A file that was checked. `names`: of its columns.

    `document`: the rows of a JSON document, None for a file that is read row by row.
    """

    path: Path
    names: tuple[str, ...]
    rows: int
    document: list[Row] | None = None

    def read(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The values of the columns `names`, row by row. A value that a row lacks is None."""
        rows = _read(self.path, names) if self.document is None else iter(self.document)
        for row in rows:
            yield tuple([row.get(name) for name in names])


def check(path: Path) -> File:
    """Read one file to its end, in the format of its suffix. Raises UsageError if it is missing or broken."""
    with readable(path):
        if not path.exists():
            raise UsageError(f"data file '{shown(path)}' does not exist: {path_hint(str(path))}")
        if path.is_fifo() or path.is_char_device():  # it may never end
            raise UsageError(f"data file '{shown(path)}' is no regular file: copy its content into one")
        suffix = suffix_of(path)
        if suffix not in SUFFIXES:
            raise UsageError(
                f"data file '{shown(path)}': suffix '{suffix}' is unknown, expected {', '.join(SUFFIXES)}"
            )
        if suffix == _PARQUET:
            return _check_parquet(path)
        document = json_files.document(path) if format_of(path) == ".json" else None
    names: dict[str, None] = {}
    rows = 0
    for row in _read(path) if document is None else document:
        rows += 1
        if not row.keys() <= names.keys():
            names.update(dict.fromkeys(row))
    return File(path, tuple(names), rows, document)


def _read(path: Path, names: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of a file, with the columns `names` if reading fewer columns is faster. Raises UsageError."""
    with readable(path):
        yield from _READERS[format_of(path)](path, names)


def _read_csv(path: Path, _names: Sequence[str] | None, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    with open_text(path, newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            if len(set(header)) != len(header):
                raise UsageError(f"data file '{shown(path)}': the header {header} names a column twice")
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise UsageError(
                        f"data file '{shown(path)}' line {reader.line_num}: found {len(row)} columns, "
                        f"expected {len(header)} as in the header"
                    )
                yield dict(zip(header, row))
        except csv.Error as error:
            raise UsageError(f"data file '{shown(path)}' line {reader.line_num}: invalid csv, {error}") from error


def _read_json_lines(path: Path, _names: Sequence[str] | None) -> Iterator[Row]:
    return json_files.read_lines(path)


def _read_text(path: Path, _names: Sequence[str] | None) -> Iterator[Row]:
    with open_text(path) as file:
        for line in file:
            if line.strip():
                yield {"text": line.rstrip("\n")}


@contextmanager
def _valid_parquet(path: Path) -> Iterator[None]:
    """Turn the errors of pyarrow into UsageError. For damaged data, it raises OSError without an error number."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise UsageError(f"data file '{shown(path)}': invalid parquet, {str(error).splitlines()[0]}") from error


def _check_parquet(path: Path) -> File:
    """Read the columns' names and the number of rows, which are in the file's metadata, and no rows."""
    import pyarrow.parquet

    with _valid_parquet(path), pyarrow.parquet.ParquetFile(path) as file:
        return File(path, tuple(file.schema_arrow.names), file.metadata.num_rows)


def _read_parquet(path: Path, names: Sequence[str] | None) -> Iterator[Row]:
    import pyarrow.parquet

    with _valid_parquet(path), pyarrow.parquet.ParquetFile(path) as file:
        present = [name for name in file.schema_arrow.names if names is None or name in names]
        for batch in file.iter_batches(_BATCH, columns=present):
            yield from batch.to_pylist()


_READERS: dict[str, Callable[[Path, Sequence[str] | None], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".json": _read_json_lines,
    ".jsonl": _read_json_lines,
    _PARQUET: _read_parquet,
    ".txt": _read_text,
}
# Parquet compresses its own columns.
SUFFIXES = (*_READERS, *(suffix + GZIP for suffix in _READERS if suffix != _PARQUET))
# Formats whose files name their columns, so that all files of a table have the same.
WITH_HEADER = (".csv", ".tsv", _PARQUET)
