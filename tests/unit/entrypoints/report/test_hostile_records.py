"""A job writes its records, and another user reads them: whatever they contain, the reader ends with one line."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.page import render
from cpu_train_stack.records import job, record
from cpu_train_stack.records.record import Event, Line, Log, Sample
from cpu_train_stack.report import compare, folder
from cpu_train_stack.watch import plain, snapshot, tail
from cpu_train_stack.watch.tail import Tail
from tests import fuzzing, synthetic_records
from tests.synthetic_records import BEGIN

_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        "",
        "text",
        "\x1b[2J",
        -1,
        0,
        1,
        1.5,
        -0.5,
        1e308,
        1e-308,
        10**11,
        10**30,
        float("nan"),
        float("inf"),
    ),
    *([], [1], ["x"], [[]], [None], {}, {"a": 1}, {"a": None}, {"cores": 1}, {"reasons": 3, "warnings": [1]}),
    *({"cores": [1]}, {"cores": [{"cpus": 3}]}, {"cores": [{"cpus": [5], "socket": "a"}], "nodes": 1}),
)


def write(output: Path) -> list[Path]:
    synthetic_records.write(output, 2, 30)
    more: list[Line] = [
        Log(BEGIN + 40, 30, {"loss": 0.5, "eval_accuracy": 0.9}),
        Event(BEGIN + 50, 30, "failure", text="x"),
    ]
    synthetic_records.append(output, [synthetic_records.start(0, 2, 2, 30, time=BEGIN + 30, first_step=25), *more])
    (output / "result.json").write_text(
        json.dumps({"metric_name": "accuracy", "metric_after": 0.9, "metrics": {"eval_f1": 1}})
    )
    speed = {"value": 1.0, "low": 0.5, "high": 2.0}
    (output / "forecast.json").write_text(
        json.dumps({"rows": [{"nodes": 1, "global_batch": 8, "samples_per_second": speed}]})
    )
    return [*sorted(output.glob("_records/*")), output / "result.json", output / "forecast.json"]


def read(output: Path) -> None:
    """As `report`, `compare` and `watch` do."""
    refused = []
    for show in (_report, _watch):
        try:
            show(output)
        except UsageError as error:
            refused.append(str(error))
    assert [text for text in refused if "\n" in text] == []


def _report(output: Path) -> None:
    render.html_text(folder.of(output))
    run = compare._read(output, "a")
    render.html_text(compare.document([run, compare._read(output, "b")]))


def _watch(output: Path) -> None:
    found = Tail(output).read()
    if found is not None:
        now = snapshot.of(found, time.time())
        assert all([now.title, plain.line(now), plain.ending(now), *map(plain.event, now.events)])


def _change_value(line: dict[str, Any], chance: random.Random) -> None:
    inner: Any = line
    while True:
        name = chance.choice([*inner]) if isinstance(inner, dict) else chance.randrange(len(inner))
        if not isinstance(inner[name], (dict, list)) or not inner[name] or chance.random() < 0.4:
            inner[name] = chance.choice(_VALUES)
            return
        inner = inner[name]


def _mutated(text: str, chance: random.Random) -> bytes:
    lines = text.splitlines()
    for _ in range(chance.choice([1, 1, 3, 20])):
        at = chance.randrange(len(lines))
        way = chance.random()
        if way < 0.75:
            try:
                document = json.loads(lines[at])
                _change_value(document, chance)
                lines[at] = json.dumps(document)
            except (ValueError, TypeError, IndexError, RecursionError):
                lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
        elif way < 0.85:
            lines[at] = chance.choice(
                ["", "null", "3", "[]", "[" * 100_000, "\0" * 50, '{"kind":[]}', '{"kind":"steps"}']
            )
        else:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.timeout(600)
def test_no_content_of_a_jobs_files_ends_a_reader_with_a_traceback(tmp_path: Path) -> None:
    texts = {path: path.read_text() for path in write(tmp_path)}
    read(tmp_path)
    for seed in (2460, *fuzzing.cases(150)):
        chance = random.Random(seed)
        path = chance.choice([*texts])
        path.write_bytes(_mutated(texts[path], chance))
        with fuzzing.one_case(seed, path.name):
            read(tmp_path)
        path.write_text(texts[path])


def test_an_integer_that_no_float_can_have_is_left_out(tmp_path: Path) -> None:
    write(tmp_path)
    for key in ("train_loss_last", "metric_after", "metrics"):
        value = {"eval_f1": 10**400} if key == "metrics" else 10**400
        (tmp_path / "result.json").write_text(json.dumps({"metric_name": "f1", key: value}))
        read(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["_records/rank-00000.jsonl", "_records", "result.json", "forecast.json"])
@pytest.mark.parametrize("kind", ["fifo", "device", "link", "folder", "enormous"])
def test_a_file_that_never_ends_or_is_no_file_is_refused(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_MOST_BYTES", "BYTES_AT_ONCE"):  # zeros take time, too
        monkeypatch.setattr(job, limit, getattr(job, limit) >> 4)
    monkeypatch.setattr(tail, "_READ_AT_ONCE", tail._READ_AT_ONCE >> 4)
    output = tmp_path / "output"
    write(output)
    path = output / name
    path.rename(tmp_path / "of another folder")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "enormous":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else tmp_path / "of another folder")
    # Of an enormous file of records, which is a regular file, a part is read, and the other rank's.
    is_read = kind == "enormous" and name.startswith("_records/")
    with contextlib.nullcontext() if is_read else pytest.raises(UsageError):
        _report(output)
    with contextlib.suppress(UsageError):
        _watch(output)


def test_a_million_absent_ranks_are_few_bytes(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, 1, 5)
    path = record.path(tmp_path, 0)
    path.write_text(path.read_text().replace('"world_size":1', '"world_size":100000000000'))
    read(tmp_path)


def test_texts_of_a_job_stay_in_their_line(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\nline 2"
    texts: dict[str, Any] = {"host": evil, "backend": evil, "pin": evil, "command": ["train", evil], "config": {}}
    slow = {1: {"compute": 1.3}}
    synthetic_records.write(tmp_path, 2, 30, slow=slow, change=lambda start: replace(start, **texts))
    more = [Event(BEGIN + 99, 30, evil, text=evil), Event(BEGIN + 100, 30, "failure", text=evil)]
    with record.path(tmp_path, 0).open("a") as file:
        file.writelines(map(record.encode, more))
    found = Tail(tmp_path).read()
    assert found
    now = snapshot.of(found, BEGIN + 199)
    assert now.straggler is not None
    shown = (now.title, plain.line(now), *plain.problems(now), plain.ending(now), *map(plain.event, now.events))
    assert [text for text in shown if not text.isprintable()] == []


@pytest.mark.parametrize("read", [job.read, lambda output: Tail(output).read()], ids=["report", "watch"])
def test_little_of_many_starts_is_kept(read: Callable[[Path], job.RecordedJob], tmp_path: Path) -> None:
    own = synthetic_records.start(0, 1, 1, 30)
    starts: list[Line] = [replace(own, time=BEGIN + number, first_step=number) for number in range(3000)]
    synthetic_records.append(tmp_path, starts)
    kept = read(tmp_path).first.starts
    assert (kept[0].time, kept[-1]) == (BEGIN, starts[-1])
    assert 400 < len(kept) <= 1000
    assert not any(start.topology or start.plan or start.command for start in kept[:-1])


def test_a_rank_without_a_start_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "MOST_RECORDS", 800)
    synthetic_records.write(tmp_path, 2, 1000)
    own, *lines = record.path(tmp_path, 1).read_text().splitlines(keepends=True)
    assert '"kind":"start"' in own
    record.path(tmp_path, 1).write_text("".join(lines))
    read(tmp_path)
    assert [*job.read(tmp_path).ranks] == [0]


@pytest.mark.parametrize("at", [-1, 0, 9.5, 10, 99])
def test_a_line_belongs_to_the_last_start_before_it(at: float) -> None:
    own = synthetic_records.start(0, 1, 1, 9)
    rank = job.Rank(starts=[replace(own, time=BEGIN + begin) for begin in (0, 9, 10, 10)])
    before = [start for start in rank.starts if start.time <= BEGIN + at]
    assert rank.start_of(Sample(BEGIN + at, 1, 1, 1.0, 0.0, 0)) is (before or rank.starts[:1])[-1]


def test_watch_keeps_a_bounded_part_of_files_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "MOST_RECORDS", 800)
    monkeypatch.setattr(tail, "_READ_AT_FIRST", 1 << 20)
    synthetic_records.write(tmp_path, 2, 3000)
    texts = {number: record.path(tmp_path, number).read_bytes() for number in range(2)}
    look = Tail(tmp_path)
    found = None
    for part in (3, 2, 1):
        for number, text in texts.items():
            record.path(tmp_path, number).write_bytes(text[: len(text) // part])
        found = look.read()
    assert found is not None
    first, other = found.ranks[0], found.ranks[1]
    assert max(len(kept) for rank in (first, other) for kept in (rank.steps, rank.samples)) <= 800
    assert sum(one.steps for one in first.steps) == 3000
    assert [one.step for one in other.steps] == [*range(2601, 3001)]


def test_of_many_folders_and_files_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_MOST_FOLDERS", 3)
    monkeypatch.setattr(job, "_MOST_FILES", 2)
    for number in range(9):
        (tmp_path / "many" / str(number)).mkdir(parents=True)
    synthetic_records.write(tmp_path, 4, 5)
    assert len(tail.folders(tmp_path)) == 1 + 2 + 3
    found = Tail(tmp_path).read()
    assert found is not None
    assert [*found.ranks] == [*job.read(tmp_path).ranks] == [0, 1]
