"""Read local data files into columns: csv, tsv, json, jsonl, parquet, txt and SQuAD's nested JSON.

Without torch and datasets, so that each error names the file, the line and the fix.
"""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable

from entrypoints.cli.errors import UsageError


@dataclass(frozen=True)
class Table:
    """Columns of equal length. `source`: the name of the file (or the hub's split) in messages.

    `classes`: the data set's class names in order, by column of labels or of lists of labels. Empty for files.
    """

    source: str
    columns: dict[str, list[Any]]
    classes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), []))

    @property
    def listing(self) -> str:
        """The names of the columns, for messages."""
        return ", ".join(f"'{name}'" for name in self.columns)

    def column(self, name: str, advice: str) -> list[Any]:
        """The values of a column. Raises UsageError, which ends with `advice`, if the column does not exist."""
        if name not in self.columns:
            raise UsageError(f"{self.source} has no column '{name}', it has {self.listing}: {advice}")
        return self.columns[name]

    def first(self, count: int | None) -> Table:
        """The first `count` rows; all of them if `count` is None."""
        return replace(self, columns={name: values[:count] for name, values in self.columns.items()})


def refuse_unlabelled(table: Table, row: int, name: str, labels: Iterable[Any]) -> None:
    """Raise UsageError if a row's labels are not classes of the data set."""
    known = table.classes.get(name)
    if not known:
        return
    for label in labels:
        if label not in known:
            raise UsageError(
                f"{table.source} row {row}: column '{name}' holds {label!r}, expected one of the data set's "
                f"{len(known)} classes: remove the row"
            )


def parse_text_columns(value: str | None) -> tuple[str, ...] | None:
    """`--text_column_names a,b` -> ("a", "b"). Raises UsageError for more than two."""
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if len(names) not in (1, 2):
        raise UsageError(f"--text_column_names '{value}' names {len(names)} columns, expected one or two")
    return names


def digest(items: Iterable[Any]) -> str:
    """A checksum of rows, to compare the data of the ranks."""
    value = 0
    for item in items:
        value = zlib.crc32(json.dumps(item, sort_keys=True, default=str).encode(), value)
    return f"{value:08x}"


def short(value: Any) -> str:
    """`value` in at most 60 characters, for messages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def read(path: Path) -> Table:
    """Read one file, in the format of its suffix. Raises UsageError if the file is missing, empty or broken."""
    try:
        fault = "is a folder, expected a file" if stat.S_ISDIR(path.stat().st_mode) else None
    except PermissionError as error:
        raise _unreadable(path, error) from error
    except OSError:
        fault = "does not exist"
    if fault is not None:
        raise UsageError(f"data file '{path}' {fault}: check the path and the mount")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"data file '{path}': suffix '{path.suffix}' is unknown, expected {', '.join(_READERS)}")
    try:
        columns = reader(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"data file '{path}': byte {error.start} is not UTF-8: convert the file") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    table = Table(path.name, columns)
    if table.rows == 0:
        raise UsageError(f"data file '{path}' is empty: no rows found, expected at least one")
    return table


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"data file '{path}' cannot be read by user {os.getuid()} ({error.strerror or error}): "
        "change the mode of the file or its folder"
    )


def _read_csv(path: Path, delimiter: str = ",") -> dict[str, list[Any]]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            if len(set(header)) != len(header):
                raise UsageError(f"data file '{path}': the header {header} names a column twice")
            columns: list[list[Any]] = [[] for _ in header]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise UsageError(
                        f"data file '{path}' line {reader.line_num}: found {len(row)} columns, "
                        f"expected {len(header)} as in the header"
                    )
                for values, value in zip(columns, row):
                    values.append(value)
        except csv.Error as error:
            raise UsageError(f"data file '{path}' line {reader.line_num}: invalid csv, {error}") from error
    return dict(zip(header, columns))


def _read_json_lines(path: Path) -> dict[str, list[Any]]:
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                rows.append(_parse(line, path, number))
    return _to_columns(rows, path)


def _read_json(path: Path) -> dict[str, list[Any]]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        # JSON lines often carry the suffix .json: one complete object, then more.
        if error.msg == "Extra data":
            return _read_json_lines(path)
        raise _broken(path, error, error.lineno) from error
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        document = document["data"]
    if isinstance(document, dict):
        document = [document]
    if not isinstance(document, list):
        raise UsageError(f"data file '{path}': found one {type(document).__name__}, expected a list of objects")
    if document and isinstance(document[0], dict) and "paragraphs" in document[0]:
        document = list(_flatten_squad(document, path))
    return _to_columns(document, path)


def _flatten_squad(articles: Iterable[Any], path: Path) -> Iterable[dict[str, Any]]:
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
                f"data file '{path}': found an entry without {error}, expected SQuAD's format (data, paragraphs, "
                "context, qas, id, question, answers)"
            ) from error


def _read_text(path: Path) -> dict[str, list[Any]]:
    with path.open(encoding="utf-8-sig") as file:
        return {"text": [line.rstrip("\n") for line in file if line.strip()]}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise UsageError(f"data file '{path}': invalid parquet, {str(error).splitlines()[0]}") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _broken(path, error, line) from error


def _broken(path: Path, error: json.JSONDecodeError, line: int) -> UsageError:
    return UsageError(f"data file '{path}' line {line} column {error.colno}: invalid JSON, {error.msg}")


def _to_columns(rows: list[Any], path: Path) -> dict[str, list[Any]]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageError(f"data file '{path}' row {number}: found {type(row).__name__}, expected an object")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


_READERS: dict[str, Callable[[Path], dict[str, list[Any]]]] = {
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
    ".txt": _read_text,
}
