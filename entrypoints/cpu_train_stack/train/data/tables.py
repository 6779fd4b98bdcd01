"""Tables of rows that are read from their files, or from a data set on the hub, each time they are needed."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path, PurePath
from typing import Any, Callable, TypeVar

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.records.origin import without_credentials
from cpu_train_stack.train.data import files, remote
from cpu_train_stack.train.data.opening import format_of, readable, suffix_of

# Items of a batch.
_BATCH = 100
# The names of columns -> their values, row by row.
Reader = Callable[[Sequence[str]], Iterator[tuple[Any, ...]]]
AnyPath = TypeVar("AnyPath", bound=PurePath)


class RowStream(Collection[Any]):
    """Items that are read or computed again in each iteration, so that they are never all in memory."""

    def __init__(self, start: Callable[[], Iterator[Any]], count: int) -> None:
        self._start = start
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return islice(self._start(), self._count)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: object) -> bool:
        return any(item == other for other in self)


@dataclass(frozen=True)
class DataTable:
    """Columns of equal length. `source`: the name of the file (or the hub's split) in messages.

    `classes`: the data set's class names in order, by column of labels or of lists of labels. Empty for files.
    `parts`: the name and the number of rows of each file, if there are several. `reader`: reads several columns at
    once; None for columns that are lists.
    """

    source: str
    columns: Mapping[str, Collection[Any]]
    classes: dict[str, list[str]] = field(default_factory=dict)
    parts: tuple[tuple[str, int], ...] = ()
    reader: Reader | None = None

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def listing(self) -> str:
        """The names of the columns, for messages."""
        return ", ".join(f"'{name}'" for name in self.columns)

    def where(self, row: int) -> str:
        """The place of row `row`, counted from 1, for messages."""
        for name, rows in self.parts:
            if row <= rows:
                return f"{name} row {row}"
            row -= rows
        return f"{self.source} row {row}"

    def column(self, name: str, advice: str) -> Collection[Any]:
        """The values of a column. Raises UsageError, which ends with `advice`, if the column does not exist."""
        if name not in self.columns:
            raise UsageError(f"{self.source} has no column '{name}', it has {self.listing}: {advice}")
        return self.columns[name]

    def records(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """The values of several columns, row by row."""
        if self.reader is None:
            return zip(*(self.columns[name] for name in names))
        return islice(self.reader(names), self.rows)

    def first(self, count: int | None) -> DataTable:
        """The first `count` rows; all of them if `count` is None."""
        if count is None:
            return self
        if self.reader is not None:
            columns: Mapping[str, Any] = streams(self.columns, self.reader, min(count, self.rows))
        else:
            columns = {name: list(values)[:count] for name, values in self.columns.items()}
        return replace(self, columns=columns)


def streams(names: Iterable[str], reader: Reader, rows: int) -> dict[str, RowStream]:
    """The columns of a table that `reader` reads."""
    return {name: RowStream(partial(_values, reader, name), rows) for name in names}


def _values(reader: Reader, name: str) -> Iterator[Any]:
    return (value for (value,) in reader([name]))


def batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    """The items in lists, for a tokenizer that is faster with many texts at once."""
    source = iter(items)
    while batch := list(islice(source, _BATCH)):
        yield batch


def refuse_unlabelled(table: DataTable, row: int, name: str, labels: Iterable[Any]) -> None:
    """Raise UsageError if a row's labels are not classes of the data set."""
    known = table.classes.get(name)
    if not known:
        return
    for label in labels:
        if label not in known:
            raise UsageError(
                f"{table.where(row)}: column '{name}' holds {label!r}, expected one of the data set's "
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


def count_and_digest(items: Iterable[Any]) -> tuple[int, str]:
    """The number of rows and a checksum of them. repr takes a sixth of the time of JSON."""
    value, count = hashlib.blake2b(digest_size=16), 0
    for item in items:
        value.update(repr(item).encode() + b"\n")
        count += 1
    return count, value.hexdigest()


def short(value: Any) -> str:
    """`value` in at most 60 characters, for messages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def read(path: str) -> DataTable:
    """The rows of a file, of the data files in a folder, or of the files that a pattern matches, in their order.

    Raises UsageError if there is no file, and for a missing, empty or broken file.
    """
    paths = find(path)
    found = [files.check(one) for one in paths]
    rows = sum(file.rows for file in found)
    if not any(file.rows and file.names for file in found):
        raise UsageError(f"data file '{without_credentials(path)}' is empty: no rows found, expected at least one")
    with_rows = [file for file in found if file.rows]
    for file in with_rows:
        missing = set(with_rows[0].names) ^ set(file.names)
        if missing and format_of(file.path) in files.WITH_HEADER:
            raise UsageError(
                f"data file '{remote.shown(file.path)}' has the columns {list(file.names)}, expected "
                f"{list(with_rows[0].names)} as in '{remote.shown(with_rows[0].path)}'"
            )

    def reader(names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(file.read(names) for file in with_rows)

    several = len(found) > 1
    return DataTable(
        source=f"{Path(path).name} ({len(found)} files)" if several else found[0].path.name,
        columns=streams(dict.fromkeys(name for file in with_rows for name in file.names), reader, rows),
        parts=tuple((file.path.name, file.rows) for file in found) if several else (),
        reader=reader,
    )


def find(path: str) -> list[Path]:
    """The files that `path` names, sorted: a file, the data files in a folder, or those that a pattern matches.

    Files at a URL are copied.
    """
    if remote.is_url(path):
        is_pattern = "*" in path
        is_file = not is_pattern and suffix_of(remote.path_of(path)) in files.SUFFIXES
        return remote.copy(path, is_file, partial(_chosen, without_credentials(path), not is_pattern))
    with readable(path):
        named = Path(path)
        if named.is_dir():
            return _chosen(path, True, (one for one in named.iterdir() if one.is_file()))
        if named.exists() or not glob.has_magic(path):
            return [named]
        matches = glob.glob(path, recursive=True)  # noqa: PTH207 - Path.glob finds hidden files too
        return _chosen(path, False, (one for one in map(Path, matches) if one.is_file()))


def _chosen(path: str, is_folder: bool, found: Iterable[AnyPath]) -> list[AnyPath]:
    """The data files of `found`, sorted. `found`: the files in a folder, or those that a pattern matches."""
    if is_folder:
        shown = (one for one in found if not one.name.startswith((".", "_")))
        found = (one for one in shown if suffix_of(one) in files.SUFFIXES)
        expected = f"folder '{path}' has no data file: expected files with the suffix {', '.join(files.SUFFIXES)}"
    else:
        expected = f"no file matches '{path}': check the pattern" + (
            "" if remote.is_url(path) else " and the mount"
        )
    paths = sorted(found)
    if not paths:
        raise UsageError(expected)
    suffixes = sorted({suffix_of(one) for one in paths})
    if len(suffixes) > 1:
        folder = path.rstrip("/") if is_folder else path.rpartition("/")[0]
        raise UsageError(
            f"'{path}' has files of the formats {', '.join(suffixes)}, expected one format: pass a pattern such "
            f"as '{folder}/*{suffixes[0]}'"
        )
    return paths
