"""Files of tokens that ranks share and later runs use again: one rank writes, only the same tokens are used."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli import packages
from cpu_train_stack.train.data import token_files, token_rows
from cpu_train_stack.train.data.token_files import TokenFile, TokenFolder
from cpu_train_stack.train.data.token_rows import TokenRows

CHANCE = random.Random(1)
ROWS = [[[CHANCE.randint(0, 1 << 30) for _ in range(CHANCE.randint(1, 9))]] for _ in range(3000)]
ROOT = Path(token_files.__file__).parents[3]


class Tokenizer:
    """The attributes of a fast tokenizer that its tokens depend on."""

    chat_template = None
    truncation_side = "right"

    def __init__(self, vocabulary: str, truncation: int = 0) -> None:
        self._content = {"model": vocabulary, "truncation": truncation}
        self.special_tokens_map = {"eos_token": "</s>"}

    @property
    def backend_tokenizer(self) -> Tokenizer:
        return self

    def to_str(self) -> str:
        return json.dumps(self._content)


class Source:
    """Rows that count how many of them were read, and each tenth row."""

    def __init__(self, rows: list[Any] = ROWS, seconds: float = 0) -> None:
        self.read = 0
        self.counts: Counter[str] = Counter()
        self._rows = rows
        self._seconds = seconds

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.read += 1
            self.counts["tenth"] += self.read % 10 == 0
            if self.read % 500 == 0:
                time.sleep(self._seconds)
            yield row

    def tokens(self, file: TokenFile) -> list[Any]:
        rows = TokenRows(self, 1, self.counts, file)
        return [rows[number].tolist() for number in range(len(rows))]


@pytest.fixture(autouse=True)
def _few_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_rows, "IN_MEMORY", 1000)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def file_in(path: Path, vocabulary: str = "a", digest: str = "1", length: int = 8) -> TokenFile:
    return TokenFolder(path).file(Tokenizer(vocabulary), digest, length)


def test_a_run_with_another_output_folder_uses_the_tokens_too(tmp_path: Path) -> None:
    first, second = (file_in(tmp_path / run / token_files.FOLDER) for run in ("first", "second"))
    Source().tokens(first)
    source = Source()
    assert source.tokens(second) == ROWS
    assert source.read < 500
    first.path.unlink()
    assert Source().tokens(file_in(second.folder.path)) == ROWS
    assert files_in(second.folder.path) == [second.path]


def test_a_second_run_reads_only_the_first_rows(tmp_path: Path) -> None:
    first, second = Source(), Source()
    assert first.tokens(file_in(tmp_path)) == ROWS
    file = file_in(tmp_path)
    assert second.tokens(file) == ROWS
    assert (first.read, second.counts) == (3000, Counter(tenth=300))
    assert second.read < 500
    assert file.folder.notes == []


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"vocabulary": "b"}, id="tokenizer"),
        pytest.param({"digest": "2"}, id="rows"),
        pytest.param({"length": 9}, id="length"),
    ],
)
def test_other_content_is_tokenized_again(tmp_path: Path, changed: dict[str, Any]) -> None:
    Source().tokens(file_in(tmp_path))
    second = Source()
    assert second.tokens(file_in(tmp_path, **changed)) == ROWS
    assert second.read == 3000


def test_the_name_does_not_depend_on_what_each_call_changes_and_depends_on_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [TokenFolder(tmp_path).file(Tokenizer("a", truncation), "1") for truncation in (0, 9)]
    assert files[0].path == files[1].path
    monkeypatch.setattr(packages, "versions", lambda names: dict.fromkeys(names, "9.9"))
    assert TokenFolder(tmp_path).file(Tokenizer("a"), "1").path != files[0].path


def test_few_tokens_leave_no_file(tmp_path: Path) -> None:
    assert Source(ROWS[:5]).tokens(file_in(tmp_path / "none")) == ROWS[:5]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_a_damaged_file_is_replaced(tmp_path: Path, damage: str) -> None:
    rows = [[[9]], *ROWS] if damage == "other" else ROWS
    Source(rows).tokens(file_in(tmp_path))
    path = file_in(tmp_path).path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= damage == "changed"
    path.write_bytes(content[: {"cut": len(content) - 40, "empty": 0}.get(damage, len(content))])
    second, third, file = Source(), Source(), file_in(tmp_path)
    assert second.tokens(file) == ROWS
    assert second.read == 3000
    assert "tokenizing again" in file.folder.notes[0]
    assert third.tokens(file_in(tmp_path)) == ROWS
    assert third.read < 500


def test_ranks_that_start_together_tokenize_once(tmp_path: Path) -> None:
    sources = [Source(seconds=0.05) for _ in range(4)]
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda source=source: found.append(source.tokens(file_in(tmp_path))))
        for source in sources
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [ROWS] * 4
    assert sum(source.read == 3000 for source in sources) == 1


WRITER = """
import sys, time
from cpu_train_stack.train.data import token_rows
from tests.unit.entrypoints.train.data.test_token_files import ROWS, Source, file_in
from pathlib import Path
token_rows.IN_MEMORY = 1000
class Slow(Source):
    def __iter__(self):
        for row in super().__iter__():
            yield row
            if self.read == 1500:
                print("half", flush=True)
                time.sleep(600)
Slow().tokens(file_in(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_writer_blocks_neither_a_waiting_rank_nor_a_later_run(
    tmp_path: Path, number: signal.Signals
) -> None:
    argv = [sys.executable, "-c", WRITER, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # in an image, pytest is only on sys.path
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "half\n"
        waiting, found = Source(), list[Any]()
        thread = threading.Thread(target=lambda: found.append(waiting.tokens(file_in(tmp_path))))
        thread.start()
        thread.join(1)
        had_to_wait = not found
        writer.send_signal(number)
        thread.join(60)
    assert had_to_wait
    assert found == [ROWS]
    later, file = Source(), file_in(tmp_path)
    assert later.tokens(file) == ROWS
    file.folder.clean([file.folder.used])
    assert files_in(tmp_path) == [file.path]


def test_a_writer_that_does_not_continue_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "_STALLED_SECONDS", 0.5)
    path = file_in(tmp_path).path
    with path.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        source, file = Source(), file_in(tmp_path)
        assert source.tokens(file) == ROWS
    assert "another rank has written nothing for 0.5 s" in file.folder.notes[0]


def test_a_full_or_closed_folder_leaves_the_same_tokens_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    closed = file_in(tmp_path / "file" / "tokens")
    assert Source().tokens(closed) == ROWS
    assert "Not a directory" in closed.folder.notes[0]

    free = chain([1 << 20, 1 << 20], repeat(5000))
    monkeypatch.setattr(os, "fstatvfs", lambda _file: SimpleNamespace(f_frsize=1, f_bavail=next(free)))
    full, source = file_in(tmp_path / "tokens"), Source()
    assert source.tokens(full) == ROWS
    assert "half of the free space" in full.folder.notes[0]
    assert source.read == 3000
    assert [path.suffix for path in files_in(tmp_path / "tokens")] == [".lock"]


def test_rows_that_cannot_be_tokenized_leave_no_file_and_no_lock(tmp_path: Path) -> None:
    def rows() -> Iterator[Any]:
        yield from ROWS
        raise RuntimeError("bad row")

    with pytest.raises(RuntimeError, match="bad row"):
        TokenRows(rows(), 1, shared=file_in(tmp_path))
    assert [path.suffix for path in files_in(tmp_path)] == [".lock"]
    assert Source().tokens(file_in(tmp_path)) == ROWS


def test_what_no_rank_uses_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    Source().tokens(file_in(folder, digest="old"))
    file = file_in(folder)
    Source().tokens(file)
    file.folder.clean([set(), file.folder.used])
    assert files_in(folder) == [file.path]
    TokenFolder(folder).clean([set()])
    assert not folder.exists()
    TokenFolder(folder).clean([set()])
