"""Tokens in files of the output folder, which the ranks of a node share, and later runs use again.

One rank writes a file under a name of its own, and renames it when it is complete. The other ranks wait for a lock
that this rank holds. On a file system without locks, nothing is shared: each rank tokenizes for itself.

A file holds the tokens, the number of tokens of each row, a JSON object, the object's size, and a checksum of all
of this. The name of a file stands for everything that its tokens depend on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cpu_train_stack.cli import packages

# Trainer does not push files in a folder whose name starts with an underscore.
FOLDER = "_tokens"
_LOCK = ".lock"
# A rank waits no longer for a rank that writes nothing. Ranks write every 4 MiB.
_STALLED_SECONDS = 300.0
_POLL_SECONDS = 0.1
_BLOCK = 1 << 20
_CHECKSUM = 16  # bytes
_SIZE = 8  # bytes of the size of the JSON object
_RELEASES = ("transformers", "tokenizers", "jinja2")


@dataclass
class TokenFolder:
    """The files of tokens in an output folder. `notes`: why a file could not be used or written."""

    path: Path
    notes: list[str] = field(default_factory=list)
    used: set[Path] = field(default_factory=set)

    def file(self, tokenizer: Any, digest: str, *settings: Any) -> TokenFile:
        """The file with the tokens of a split. `digest`: of its rows. `settings`: what else they depend on."""
        return TokenFile(self, tokenizer, (digest, *settings))

    def clean(self, used: Iterable[Iterable[str | Path]]) -> None:
        """Delete tokens of earlier runs, locks, and files of killed ranks. `used`: what each rank uses."""
        kept = {Path(path) for paths in used for path in paths}
        with contextlib.suppress(OSError):
            for path in {*self.path.iterdir()} - kept:
                with contextlib.suppress(OSError):  # another node deletes it
                    path.unlink(missing_ok=True)
            if not kept:
                self.path.rmdir()


@dataclass(frozen=True)
class Stored:
    """A complete file. `lengths`: the number of tokens of each row. `counts`: what was counted in the rows."""

    file: Any
    lengths: array[int]
    counts: dict[str, int]


@dataclass(frozen=True)
class TokenFile:
    """A file that may exist, or may be written by this rank or another one."""

    folder: TokenFolder
    tokenizer: Any
    settings: tuple[Any, ...]

    @cached_property
    def path(self) -> Path:
        text = json.dumps([_code(), _tokenizer(self.tokenizer), self.settings], sort_keys=True, default=str)
        return self.folder.path / hashlib.blake2b(text.encode(), digest_size=_CHECKSUM).hexdigest()

    def claim(self, first: bytearray) -> Stored | Draft | None:
        """The file if it is complete and begins with the tokens `first`; otherwise a draft to write.

        Waits while another rank writes. None if that rank failed, or if the folder cannot be written to.
        """
        self._link_other()
        found = self._find(first)
        if found is not None:
            return found
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_suffix(_LOCK).open("ab")
            waited = _wait(lock)
            found = self._find(first)
            if found is None and not waited:
                return Draft(self, lock)
            lock.close()
        except OSError as error:
            self.give_up(error)
        return found

    def _link_other(self) -> None:
        """Take the file of a run whose output folder is next to this one. Its own name for the file may go."""
        output = self.folder.path.parent
        with contextlib.suppress(OSError):
            for other in output.parent.glob(f"*/{FOLDER}/{self.path.name}"):
                self.folder.path.mkdir(parents=True, exist_ok=True)
                os.link(other, self.path)

    def _find(self, first: bytearray) -> Stored | None:
        try:
            stored = _read(self.path, first)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.folder.notes.append(f"the tokens in '{self.path}' cannot be used ({error}): tokenizing again")
            return None
        self.folder.used.add(self.path)
        return stored

    def give_up(self, error: OSError) -> None:
        reason = error.strerror or error
        self.folder.notes.append(f"the tokens are not kept in '{self.folder.path}' ({reason}), but in TMPDIR")


class Draft:
    """A file that this rank writes. Another rank that claims the file waits until it is published or deleted."""

    def __init__(self, target: TokenFile, lock: Any) -> None:
        self._target = target
        self._lock = lock
        self._path = target.path.with_suffix(f".{uuid.uuid4().hex}")
        self._checksum = hashlib.blake2b(digest_size=_CHECKSUM)
        self._tokens = 0  # bytes
        self.file: Any = self._path.open("x+b", buffering=0)

    def write(self, tokens: bytes | bytearray) -> None:
        """Raises OSError, also if the file would take more than half of the space that was free."""
        self._append(tokens)
        self._tokens += len(tokens)
        os.utime(self._lock.fileno())  # tells the ranks that wait that this rank is at work

    def _append(self, data: bytes | bytearray) -> None:
        disk, size = os.fstatvfs(self.file.fileno()), os.fstat(self.file.fileno()).st_size
        if disk.f_bavail * disk.f_frsize < size + 2 * len(data):
            raise OSError(errno.ENOSPC, "it would take more than half of the free space")
        rest = memoryview(data)
        while rest:
            rest = rest[self.file.write(rest) :]
        self._checksum.update(data)

    def blocks(self) -> Iterator[bytes]:
        """The tokens that were written."""
        return _blocks(self.file, 0, self._tokens)

    def publish(self, lengths: array[int], counts: Mapping[str, int]) -> None:
        """Complete the file and give it its name. Raises OSError."""
        for begin in range(0, len(lengths), _BLOCK):
            self._append(lengths[begin : begin + _BLOCK].tobytes())
        text = json.dumps({"rows": len(lengths), "counts": dict(counts)}).encode()
        self._append(text + len(text).to_bytes(_SIZE, "little"))
        self._append(self._checksum.digest())
        self._path.replace(self._target.path)
        self._target.folder.used.add(self._target.path)
        self._lock.close()

    def delete(self, error: OSError | None = None) -> None:
        """Delete the file, whose content remains readable, and let the other ranks continue."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._lock.close()
        if error is not None:
            self._target.give_up(error)


def _wait(lock: Any) -> bool:
    """Lock a file. Returns whether another rank held the lock. Raises OSError if that rank does not continue."""
    waited, changed, since = False, -1.0, time.monotonic()
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            waited = True
        latest = os.fstat(lock.fileno()).st_mtime
        if latest != changed:
            changed, since = latest, time.monotonic()
        elif time.monotonic() - since > _STALLED_SECONDS:
            raise OSError(errno.ETIMEDOUT, f"another rank has written nothing for {_STALLED_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


def _read(path: Path, first: bytearray) -> Stored:
    """Check a file from its begin to its end. Raises FileNotFoundError, OSError, or ValueError for damage."""
    file: Any = path.open("rb", buffering=0)
    try:
        end = os.fstat(file.fileno()).st_size - _CHECKSUM
        if os.pread(file.fileno(), len(first), 0) != first:
            raise ValueError("other tokens")
        checksum = hashlib.blake2b(digest_size=_CHECKSUM)
        for block in _blocks(file, 0, end):
            checksum.update(block)
        if os.pread(file.fileno(), _CHECKSUM, end) != checksum.digest():
            raise ValueError("damaged")
        end -= _SIZE
        size = int.from_bytes(os.pread(file.fileno(), _SIZE, end), "little")
        end -= size
        found = json.loads(os.pread(file.fileno(), size, end))
        lengths = array("i")
        for block in _blocks(file, end - found["rows"] * lengths.itemsize, end):
            lengths.frombytes(block)
    except BaseException:
        file.close()
        raise
    return Stored(file, lengths, found["counts"])


def _blocks(file: Any, begin: int, end: int) -> Iterator[bytes]:
    while begin < end:
        block = os.pread(file.fileno(), min(_BLOCK, end - begin), begin)
        if not block:
            raise ValueError("damaged")
        yield block
        begin += len(block)


def _code() -> list[Any]:
    """The releases of the packages that tokenize, and the trainer's own code that does."""
    root = Path(__file__).parents[1]
    checksum = hashlib.blake2b(digest_size=_CHECKSUM)
    for path in sorted([*root.glob("data/*.py"), *root.glob("tasks/*.py")]):
        checksum.update(path.read_bytes())
    return [packages.versions(list(_RELEASES)), checksum.hexdigest()]


def _tokenizer(tokenizer: Any) -> list[Any]:
    """Everything that a tokenizer does to texts. Each call changes truncation and padding."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content.update(truncation=None, padding=None)
    return [
        type(tokenizer).__name__,
        content,
        tokenizer.chat_template,
        getattr(tokenizer.backend_tokenizer, "encode_special_tokens", None),
        {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        tokenizer.truncation_side,
    ]
