"""Reads the record files of a job: the lines of all ranks. Steps that a restart computed again count once."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.records import record
from cpu_train_stack.records.record import Event, Line, Log, Sample, Start, Steps

ENDS = ("end", "failure", "stop")
# The first steps after each start allocate memory and generate kernels.
_WARM_UP = 3
# Records of steps, and samples, that are read of all ranks, and at least of each rank: 0.6 kB each.
MOST_RECORDS = 64_000
FEWEST_RECORDS = 400
BYTES_AT_ONCE = 1 << 20
# A file of a million steps has 4.5 MB, with a log for each step 150 MB; a Start of 1,000 cores has 0.2 MB.
_MOST_BYTES = 256 << 20
_LONGEST_LINE = 4 << 20
_MOST_LOGS = 200_000
_MOST_STARTS = 1000
# What is read of a folder: this many files, and of all of them together this many bytes.
_MOST_FILES = 4096
_MOST_BYTES_OF_ALL = 2 << 30


@dataclass
class Rank:
    """One rank's lines in the order of their steps. `starts[-1]` is the current start; none before the first line.
    Of the earlier starts, only the times, the first steps and the numbers of the training are known.

    `end`: the event that ended the rank, one of ENDS; None while it runs, and if it was killed. `repeated`:
    steps that were lost in a failure and computed again.
    """

    starts: list[Start] = field(default_factory=list)
    steps: list[Steps] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    end: Event | None = None
    repeated: int = 0

    def add(self, text: bytes) -> Rank:
        """Add the next lines of the rank's file."""
        for row in text.decode("utf-8", errors="replace").splitlines():
            line = record.decode(row)
            if isinstance(line, Start):
                self._begin(line)
                self.end = None
                self._forget_after(line.first_step, is_restart=line.training == 1)
            elif isinstance(line, Steps):
                # A line whose write failed may be there twice.
                if not self.steps or line.step > self.steps[-1].step:
                    self.steps.append(line)
            elif isinstance(line, Sample):
                self.samples.append(line)
            elif isinstance(line, Log):
                self.logs.append(line)
                if len(self.logs) > _MOST_LOGS:
                    del self.logs[1:-1:2]
            elif isinstance(line, Event):
                self.events.append(line)
                del self.events[:-_MOST_LOGS]
                self.end = line if line.name in ENDS else self.end
        return self

    def _begin(self, start: Start) -> None:
        if self.starts:
            last = self.start
            self.starts[-1] = Start(last.time, first_step=last.first_step, training=last.training)
        self.starts.append(start)
        if len(self.starts) > _MOST_STARTS:
            del self.starts[1:-1:2]

    def _forget_after(self, step: int, is_restart: bool) -> None:
        """Remove the later steps, which a restart computes again, or which belong to an earlier training."""
        while self.steps and self.steps[-1].step > step:
            last = self.steps.pop()
            lost = min(last.steps, last.step - step)
            self.repeated += lost if is_restart else 0
            if lost < last.steps:
                self.steps.append(record.without_last(last, lost))
        while self.logs and self.logs[-1].step > step:
            self.logs.pop()

    @property
    def start(self) -> Start:
        return self.starts[-1]

    def start_of(self, line: Steps | Sample) -> Start:
        """The start that wrote this line."""
        low, high = 1, len(self.starts)  # of Python 3.9, bisect has no key
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if line.time < self.starts[middle].time else (middle + 1, high)
        return self.starts[low - 1]

    def is_warm_up(self, steps: Steps) -> bool:
        """Whether these are among the first steps after a start."""
        return steps.step - self.start_of(steps).first_step <= _WARM_UP

    def shorten(self, size: int, most: int) -> int:
        """If there are more than `most` records of steps, join those of each `size` steps, or of more.

        Of too many samples, every second one stays, with the first and the last one. Returns the size.
        """
        while len(self.samples) > most:
            del self.samples[1:-1:2]
        if len(self.steps) > most:
            self.join(size)
        larger = size
        while len(self.steps) > most and larger < self.steps[-1].step:
            larger *= 2
            self.join(larger)
        if len(self.steps) > most:  # without a start, or with losses that are not numbers, few are joined
            del self.steps[:-most]
            return size
        return larger

    def join(self, size: int) -> None:
        """Join the records of each `size` steps, a power of two.

        Ranks with the same steps and size have records of the same steps. Warm-up steps and losses that are not
        numbers stay apart.
        """

        def key(one: Steps) -> tuple[int, float, bool, bool]:
            return (one.step - 1) // size, self.start_of(one).time, self.is_warm_up(one), one.loss is None

        if size > 1 and self.starts:
            self.steps = [record.summed([*part]) for _, part in groupby(self.steps, key)]

    @property
    def last_lines(self) -> list[Line]:
        """The last line of each kind."""
        return [self.start, *self.steps[-1:], *self.samples[-1:], *self.logs[-1:], *self.events[-1:]]


@dataclass(frozen=True)
class RecordedJob:
    """`ranks`: by rank number; those whose files are not in the folder are missing."""

    folder: Path
    ranks: dict[int, Rank]

    @property
    def first(self) -> Rank:
        """The rank that logs: rank 0, or the lowest one that is here."""
        return self.ranks[min(self.ranks)]

    @property
    def world_size(self) -> int:
        return self.first.start.world_size

    @property
    def nodes(self) -> int:
        """The number of nodes, also of those whose ranks have no file here."""
        found = {rank.start.node_rank for rank in self.ranks.values()}
        return max(len(found), -(-self.world_size // max(1, self.first.start.local_world_size)))

    @property
    def missing(self) -> list[int]:
        """Ranks of the job without a file here, because their nodes do not share the folder."""
        return [rank for rank in range(self.world_size) if rank not in self.ranks]

    @property
    def step(self) -> int:
        """The number of steps done."""
        return max(
            (rank.steps[-1].step for rank in self.ranks.values() if rank.steps),
            default=self.first.start.first_step,
        )

    @property
    def end(self) -> Event | None:
        """The event that ended the job: the first failure, or rank 0's end. None while it runs."""
        return self.ending[0]

    @property
    def ending(self) -> tuple[Event | None, int]:
        """The event that ended the job, and its rank."""
        failures = [
            (rank.end.time, number, rank.end)
            for number, rank in self.ranks.items()
            if rank.end is not None and rank.end.name == "failure"
        ]
        if failures:
            _, number, event = min(failures, key=lambda one: one[:2])
            return event, number
        return self.first.end, min(self.ranks)

    @property
    def time(self) -> float:
        """When the last line was written, in seconds since the epoch."""
        return max(line.time for rank in self.ranks.values() for line in rank.last_lines)


def read(output: Path) -> RecordedJob:
    """The records in OUTPUT/_records. Raises UsageError if there are none.

    The records of many ranks are joined while they are read: rank 0 writes the report in the job's own memory.
    """
    names = files_of(output)
    most, size, left = max(FEWEST_RECORDS, MOST_RECORDS // max(1, len(names))), 1, _MOST_BYTES_OF_ALL
    ranks = [Rank() for _ in names]
    for name, rank in zip(names, ranks):
        with opened(output, name) as file:
            rest, stop = b"", max(0, left - _MOST_BYTES)
            while left > stop and (part := file.read(BYTES_AT_ONCE)):
                left -= len(part)
                lines, rest = complete(rest + part)
                size = rank.add(lines).shorten(size, most)
            rank.add(rest)
    for rank in ranks:
        rank.join(size)
    job = of(output, ranks)
    if job is None:
        raise UsageError(
            f"'{output}' holds no records of a job: expected {record.FOLDER}/rank-*.jsonl; name "
            "the --output_dir of `train` or of a script with Trainer"
        )
    return job


def files_of(output: Path) -> list[str]:
    """The names of the record files in OUTPUT/_records, of the lowest ranks first."""
    try:
        with os.scandir(output / record.FOLDER) as found:
            names = (file.name for file in found if file.name.startswith("rank-") and file.name.endswith(".jsonl"))
            return heapq.nsmallest(_MOST_FILES, names)
    except OSError:
        return []


def opened(output: Path, name: str) -> BinaryIO:
    """The record file `name`. The job may have put anything there: a link, a FIFO."""
    return os.fdopen(files.open_below(output, f"{record.FOLDER}/{name}"), "rb")


def complete(text: bytes) -> tuple[bytes, bytes]:
    """The complete lines of a part of a record file, and the rest, unless that is longer than any line."""
    lines, newline, rest = text.rpartition(b"\n")
    return lines + newline, rest if len(rest) <= _LONGEST_LINE else b""


def of(output: Path, read: Iterable[Rank]) -> RecordedJob | None:
    """The job of the ranks that have started, without those of an earlier, larger job. None without ranks."""
    ranks = {rank.start.rank: rank for rank in read if rank.starts}
    if not ranks:
        return None
    size = ranks[min(ranks)].start.world_size
    ranks = {number: rank for number, rank in ranks.items() if number < size}
    return RecordedJob(output, ranks) if ranks else None
