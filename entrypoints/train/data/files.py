"""Read data files row by row: csv, tsv, json, jsonl, parquet, txt and SQuAD's nested JSON.

Rows are read from the file each time they are needed, so that they are never all in memory; only the rows of a
JSON document are kept. This module uses neither torch nor datasets, so that each error names the file, the line
and the fix.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable

from entrypoints.cli.errors import UsageError
from entrypoints.train.data.remote import shown

Row = dict[str, Any]
_PARQUET = ".parquet"
# Parquet rows that are decoded at a time.
_BATCH = 1000
# How JSON writes half of a character, a surrogate of UTF-16.
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")


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
            raise UsageError(f"data file '{shown(path)}' does not exist: check the path and the mount")
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            raise UsageError(
                f"data file '{shown(path)}': suffix '{path.suffix}' is unknown, expected {', '.join(SUFFIXES)}"
            )
        if suffix == _PARQUET:
            return _check_parquet(path)
        document = _document(path) if suffix == ".json" else None
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
        yield from _READERS[path.suffix.lower()](path, names)


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn the errors of opening and decoding a file into UsageError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(
            f"data file '{shown(path)}': byte {_undecodable(Path(path))} is not UTF-8: convert the file"
        ) from error
    except OSError as error:
        raise UsageError(
            f"data file '{shown(path)}' cannot be read by user {os.getuid()} ({error.strerror or error}): "
            "change the mode of the file or its folder"
        ) from error


def _undecodable(path: Path) -> int:
    """The place of the first byte that is not UTF-8. The error's own number counts from the last block read."""
    place = 0
    with path.open("rb") as file:
        for line in file:
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return place + error.start
            place += len(line)
    return place


def _read_csv(path: Path, _names: Sequence[str] | None, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
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
    with path.open(encoding="utf-8-sig") as file:
        rows = 0
        for number, line in enumerate(file, 1):
            if line.strip():
                rows += 1
                row = _object(_parse(line, path, number), path, rows)
                if _HALVES.search(line):
                    _refuse_halves([row], path, rows)
                yield row


def _read_text(path: Path, _names: Sequence[str] | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if line.strip():
                yield {"text": line.rstrip("\n")}


def _document(path: Path) -> list[Row] | None:
    """The rows of a JSON document; None for JSON lines, which often have the suffix .json."""
    with path.open(encoding="utf-8-sig") as file:
        lines = filter(str.strip, file)
        first, second = next(lines, ""), next(lines, None)
    try:
        if second is not None and isinstance(json.loads(first), dict):
            return None
    except (ValueError, RecursionError):
        pass
    return list(_read_json(path))


def _read_json(path: Path) -> Iterable[Row]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        return []
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise _broken(path, error, error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"data file '{shown(path)}': {_too_much(error)}") from error
    has_halves = _HALVES.search(text) is not None
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        document = document["data"]
    if isinstance(document, dict):
        document = [document]
    if not isinstance(document, list):
        raise UsageError(
            f"data file '{shown(path)}': found one {type(document).__name__}, expected a list of objects"
        )
    if document and isinstance(document[0], dict) and "paragraphs" in document[0]:
        document = list(_flatten_squad(document, path))
    found = [_object(row, path, number) for number, row in enumerate(document, 1)]
    if has_halves:
        _refuse_halves(found, path, 1)
    return found


def _refuse_halves(rows: Iterable[Row], path: Path, first: int) -> None:
    """Raise UsageError for half of a character, which JSON can write, but which is no text. `first`: the number
    of the first row."""
    for number, row in enumerate(rows, first):
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"data file '{shown(path)}' row {number}: found \\u{ord(error.object[error.start]):x}, half of a "
                "character, expected text: correct or remove the row"
            ) from error


def _flatten_squad(articles: Iterable[Any], path: Path) -> Iterable[Row]:
    """One row per question, from the format of SQuAD 1.1 and 2.0 (rajpurkar.github.io/SQuAD-explorer)."""
    for article in articles:
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers", [])
                    yield {
                        "id": question["id"],
                        "title": article.get("title", ""),
                        "context": paragraph["context"],
                        "question": question["question"],
                        "answers": {
                            "text": [answer["text"] for answer in answers],
                            "answer_start": [answer["answer_start"] for answer in answers],
                        },
                    }
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"data file '{shown(path)}': found an entry without {error}, expected SQuAD's format (data, "
                "paragraphs, context, qas, id, question, answers)"
            ) from error


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


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _broken(path, error, line) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"data file '{shown(path)}' line {line}: {_too_much(error)}") from error


def _too_much(error: Exception) -> str:
    """What Python refuses in valid JSON."""
    found = (
        "lists or objects that are nested too deeply"
        if isinstance(error, RecursionError)
        else "a number of thousands of digits"
    )
    return f"found {found}, expected values that Python reads"


def _broken(path: Path, error: json.JSONDecodeError, line: int) -> UsageError:
    return UsageError(f"data file '{shown(path)}' line {line} column {error.colno}: invalid JSON, {error.msg}")


def _object(row: Any, path: Path, number: int) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"data file '{shown(path)}' row {number}: found {type(row).__name__}, expected an object")
    return row


_READERS: dict[str, Callable[[Path, Sequence[str] | None], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".json": _read_json_lines,
    ".jsonl": _read_json_lines,
    _PARQUET: _read_parquet,
    ".txt": _read_text,
}
SUFFIXES = tuple(_READERS)
# Formats whose files name their columns, so that all files of a table have the same.
WITH_HEADER = (".csv", ".tsv", _PARQUET)
