"""Appends a rank's lines to its record file, every few seconds, in a bounded number of lines."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from cpu_train_stack import contract
from cpu_train_stack.cli.say import say
from cpu_train_stack.records import job, record
from cpu_train_stack.records.record import Event, Line, Log, Start, Steps

# At most this many lines of a kind; after them, each line covers twice as many steps (or seconds) as before. A
# million steps take 18,000 lines of 250 bytes.
_LINES_BEFORE_COARSER = 2000
_SECONDS_BETWEEN_WRITES = 2.0
_SECONDS_BETWEEN_SAMPLES = 5.0
# While the file cannot be written, the last lines are kept.
_MOST_WAITING = 1000


class Coarsening:
    """How many units one line covers: 1 at first, doubled after every `_LINES_BEFORE_COARSER` lines."""

    def __init__(self) -> None:
        self.size = 1
        self._lines = 0

    def count(self) -> None:
        self._lines += 1
        if self._lines == _LINES_BEFORE_COARSER:
            self.size, self._lines = self.size * 2, 0


# The writers of this process, which has one or more trainers, by file.
_OPEN: dict[Path, Writer] = {}
_BEFORE_FIRST: list[Callable[[], None]] = []


def before_first(call: Callable[[], None]) -> None:
    """Call this once, before the process's first training begins."""
    _BEFORE_FIRST.append(call)


def begin(output: Path, start: Start) -> Writer:
    """A Writer that `finish` ends with the process. It continues an earlier training's file of this process."""
    while _BEFORE_FIRST:
        _BEFORE_FIRST.pop()()
    path = record.path(output, start.rank)
    before = _OPEN.get(path)
    if before is not None:
        before.flush()
        start = replace(start, training=before.training + 1)
    opened = _OPEN[path] = Writer(output, start)
    pointer = os.environ.get(contract.RECORDS)
    if pointer:
        with contextlib.suppress(OSError):
            Path(pointer).write_text(str(output.resolve()), encoding="utf-8")
    return opened


def finish(name: str, text: str = "") -> list[Path]:
    """Write the job's last event, one of job.ENDS, and everything else. Returns rank 0's output folders."""
    for opened in _OPEN.values():
        opened.add(Event(round(time.time(), 3), opened.step, name, text=text))
        opened.flush()
    folders = [opened.output for opened in _OPEN.values() if opened.rank == 0]
    _OPEN.clear()
    return list(dict.fromkeys(folders))


@dataclass(frozen=True)
class Failed:
    """A rank that has failed or was stopped. `text`: how. `time`: when, in seconds since the epoch."""

    rank: int
    text: str
    time: float
    name: str = "failure"  # of the event


def failed(pointer: Path, failures: Iterable[Failed]) -> Path | None:
    """Record the failures of ranks that have ended without doing so themselves.

    `pointer`: the file that contract.RECORDS named for them. Returns the output folder; None if the job has no
    records. The failure of a rank that has no file, because it has not begun to train, goes to another rank's.
    """
    try:
        output = Path(pointer.read_text(encoding="utf-8"))
    except OSError:
        return None
    files = sorted((output / record.FOLDER).glob("rank-*.jsonl"))
    if not files:
        return None
    by_file = [(record.path(output, failure.rank), failure) for failure in failures]
    for path, failure in sorted(by_file, key=lambda one: (one[0] not in files, one[1].time)):
        if path not in files and failure.name == "stop":
            continue  # another rank's file is for failures
        with contextlib.suppress(OSError):
            _end(path if path in files else files[0], failure)
    return output


def _end(path: Path, failure: Failed) -> None:
    """Append the failure if no end is recorded."""
    found = job.Rank().add(path.read_bytes())
    if found.starts and found.end is None:
        step = found.steps[-1].step if found.steps else found.start.first_step
        # The launcher's time may be rounded down, to before the rank's last line.
        at = max([failure.time, *(line.time for line in found.last_lines)])
        event = Event(round(at, 3), step, failure.name, text=failure.text)
        with path.open("a", encoding="utf-8") as file:  # its last line may be incomplete
            file.write("\n" + record.encode(event))


class Writer:
    """The record file of one rank. A failed write is tried again with the next lines; one warning is printed."""

    def __init__(self, output: Path, start: Start) -> None:
        """Begin the file with `start`, or append to it if it is of the same job or process, or of the run that
        `start` continues."""
        self.output, self.rank, self.step = output, start.rank, start.first_step
        self.training = start.training
        self._path = record.path(output, start.rank)
        self._buffer: list[Line] = []
        self._written = self._sampled = 0.0
        self._pending: Steps | None = None
        self._steps, self._samples = Coarsening(), Coarsening()
        self._warned = False
        before = last_start(self._path)
        continues = before is not None and (
            start.first_step > 0 or start.training > 1 or is_same_job(before, start)
        )
        try:
            if not continues:
                self._path.unlink(missing_ok=True)
                if start.rank == 0:
                    _remove_ranks_from(self._path.parent, start.world_size)
        except OSError as error:
            self._warn(error)
        # A killed process may have left an incomplete line.
        self._before = "\n" if continues else ""
        self.add(start)

    def add(self, line: Line) -> None:
        """Write a line now or within seconds. Several steps become one line in a long job."""
        if isinstance(line, Steps):
            self.step = line.step
            line = line if self._pending is None else record.summed([self._pending, line])
            if line.steps < self._steps.size:
                self._pending = line
                return
            self._pending = None
            self._steps.count()
        self._buffer.append(line)  # encoded when it is written: several lines take less time than one by one
        if isinstance(line, (Start, Log, Event)) or time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self._write()

    def wants_sample(self) -> bool:
        """Whether it is time for another Sample."""
        now = time.monotonic()
        if self._sampled and now - self._sampled < _SECONDS_BETWEEN_SAMPLES * self._samples.size:
            return False
        self._sampled = now
        self._samples.count()
        return True

    def flush(self) -> None:
        """Write everything that was added."""
        if self._pending is not None:
            self._buffer.append(self._pending)
            self._pending = None
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if not self._buffer:
            return
        size = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                size = file.tell()
                file.write(self._before + "".join(map(record.encode, self._buffer)))
        except OSError as error:
            self._warn(error)
            self._before = "\n"
            with contextlib.suppress(OSError):
                if size is not None:  # a part of the lines may be in the file
                    os.truncate(self._path, size)
            del self._buffer[1:-_MOST_WAITING]  # the first may be the Start, without which nothing is read
        else:
            self._before = ""
            self._buffer.clear()

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            say(f"warning: cannot record the steps in '{self._path}': {error.strerror or error}")
        self._warned = True


def is_same_job(one: Start, other: Start) -> bool:
    """Whether a launcher restarted the rank. Several jobs of one name may have different commands."""
    return bool(one.job) and (one.job, one.command) == (other.job, other.command)


def last_start(path: Path) -> Start | None:
    """The last Start in a record file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith('{"kind":"start"')]
    except OSError:
        return None
    found = record.decode(lines[-1]) if lines else None
    return found if isinstance(found, Start) else None


def _remove_ranks_from(folder: Path, first: int) -> None:
    """Remove the files of an earlier run with more ranks."""
    for path in folder.glob("rank-*.jsonl"):
        number = path.stem.partition("-")[2]
        if number.isdecimal() and int(number) >= first:
            path.unlink(missing_ok=True)
