"""Open data files as text, including files that are compressed with gzip."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, TextIO, cast

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.remote import shown

GZIP = ".gz"


def suffix_of(path: PurePath) -> str:
    """The suffix in lower case; of a compressed file, both suffixes: .csv.gz."""
    suffixes = PurePath(path.name.lower()).suffixes
    return "".join(suffixes[-2:] if suffixes[-1:] == [GZIP] else suffixes[-1:])


def format_of(path: PurePath) -> str:
    """The suffix without .gz: the format of the file's content."""
    return suffix_of(path).removesuffix(GZIP)


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """Open a file in UTF-8, with or without a byte order mark. `newline`: as for open."""
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", newline=newline)


def _open_bytes(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix.lower() == GZIP else path.open("rb")


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn the errors of opening and decoding a file into UsageError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(
            f"data file '{shown(path)}': byte {_undecodable(Path(path))} is not UTF-8: convert the file"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"data file '{shown(path)}': invalid gzip, {error}: copy the file again") from error
    except OSError as error:
        raise UsageError(
            f"data file '{shown(path)}' cannot be read by user {os.getuid()} ({error.strerror or error}): "
            "change the mode of the file or its folder"
        ) from error


def _undecodable(path: Path) -> int:
    """The place of the first byte that is not UTF-8. The error's own number counts from the last block read."""
    place = 0
    with _open_bytes(path) as file:
        for line in file:
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return place + error.start
            place += len(line)
    return place
