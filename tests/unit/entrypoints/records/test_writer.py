"""The record file: bounded, appended to by the same job only, and never a reason for a job to fail."""

from __future__ import annotations

import json
import re
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.records import job, record, writer
from cpu_train_stack.records.record import Event, Line, Log, Start, Steps
from cpu_train_stack.records.writer import Failed, Writer
from cpu_train_stack.report import events
from cpu_train_stack.watch import snapshot

START = Start(time=1.0, world_size=2, command=["train"], job="a job", last_step=100)


def step(number: int, steps: int = 1) -> Steps:
    return Steps(number + 1.0, number, steps, 1.0, 0.3, 0.5, 0.1, 0.05, 0.05, 1.0, 8, 100, 90, float(number))


def lines(output: Path, rank: int = 0) -> list[dict[str, object]]:
    return [json.loads(line) for line in record.path(output, rank).read_text().splitlines() if line]


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    opened = Writer(tmp_path, START)
    written: list[Line] = [step(1), step(2), Log(3.5, 2, {"loss": 0.5}), Event(4.0, 2, "end")]
    for line in written:
        opened.add(line)
    rank = job.read(tmp_path).ranks[0]
    assert [*rank.starts, *rank.steps, *rank.logs, *rank.events] == [START, *written]


def test_a_long_job_has_few_lines_and_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LINES_BEFORE_COARSER", 50)
    opened = Writer(tmp_path, START)
    for number in range(1, 20_001):
        opened.add(step(number))
    opened.flush()
    found = job.read(tmp_path).ranks[0].steps
    assert len(found) < 500
    assert {one.steps for one in found[:50]} == {1}
    assert sum(one.steps for one in found) == 20_000
    assert sum(one.seconds for one in found) == pytest.approx(20_000)
    assert sum(one.computed for one in found) == 2_000_000
    last = found[-2]
    assert last.loss == pytest.approx(last.step - (last.steps - 1) / 2)


def test_null_stands_for_numbers_that_json_lacks(tmp_path: Path) -> None:
    opened = Writer(tmp_path, START)
    opened.add(replace(step(1), loss=float("nan")))
    opened.add(Log(1.0, 1, {"grad_norm": float("inf")}))
    assert "NaN" not in record.path(tmp_path, 0).read_text()
    assert job.read(tmp_path).ranks[0].steps[0].loss is None


def test_a_large_metric_takes_nothing_from_its_line(tmp_path: Path) -> None:
    opened = Writer(tmp_path, START)
    opened.add(Log(1.0, 1, {"loss": 0.5, "total_flos": 3e18, "grad_norm": 1e300}))
    opened.flush()
    assert job.read(tmp_path).ranks[0].logs[0].values == {"loss": 0.5, "total_flos": 3e18, "grad_norm": 1e300}


@pytest.mark.parametrize(
    ("second", "starts"),
    [
        (START, 2),  # a restart before the first checkpoint
        (replace(START, first_step=5, job=""), 2),  # --resume_from_checkpoint
        (replace(START, job="another job"), 1),
        (replace(START, command=["train", "--max_steps", "7"]), 1),
        (replace(START, job=""), 1),
    ],
)
def test_the_same_job_appends_and_another_one_begins_again(second: Start, starts: int, tmp_path: Path) -> None:
    first = Writer(tmp_path, START)
    for number in range(1, 9):
        first.add(step(number))
    first.flush()
    Writer(tmp_path, second)
    rank = job.read(tmp_path).ranks[0]
    assert len(rank.starts) == starts
    assert len(rank.steps) == (second.first_step if starts == 2 else 0)
    assert rank.repeated == (8 - second.first_step if starts == 2 else 0)


@pytest.mark.parametrize("name", ["a job", ""])
def test_a_script_that_trains_several_times_has_not_restarted(name: str, tmp_path: Path) -> None:
    """As for cross-validation."""
    for fold in range(3):
        opened = writer.begin(tmp_path, replace(START, time=100.0 * fold, job=name))
        for number in range(1, 41):
            opened.add(step(number))
    assert writer.finish("end") == [tmp_path]
    found = job.read(tmp_path)
    assert (found.first.repeated, len(found.first.steps)) == (0, 40)
    starts = [one.text for one in events.happenings(found) if one.name == "start"]
    assert starts == ["", "training 2 from the beginning", "training 3 from the beginning"]
    assert [one.name for one in found.first.events] == ["end"]
    assert snapshot.of(found, now=300.0).restarts == 0


def test_a_restart_within_a_record_of_many_steps_keeps_the_steps_before(tmp_path: Path) -> None:
    first = Writer(tmp_path, START)
    for number in (512, 1024, 1536, 2048):
        first.add(replace(step(number, 512), seconds=512.0, rows=4096))
    first.flush()
    Writer(tmp_path, replace(START, first_step=2000))
    rank = job.read(tmp_path).ranks[0]
    assert rank.repeated == 48
    last = rank.steps[-1]
    assert (last.step, last.steps, last.seconds, last.rows, last.time) == (2000, 464, 464.0, 3712, 2001.0)
    assert [one.step for one in rank.steps] == [512, 1024, 1536, 2000]


def test_a_restart_after_an_incomplete_line_is_read(tmp_path: Path) -> None:
    Writer(tmp_path, START)
    with record.path(tmp_path, 0).open("a") as file:
        file.write('{"kind":"steps","time":2.0,"st')
    Writer(tmp_path, replace(START, time=3.0))
    assert [start.time for start in job.read(tmp_path).ranks[0].starts] == [1.0, 3.0]


def test_another_job_with_fewer_ranks_removes_the_files_of_the_others(tmp_path: Path) -> None:
    for rank in range(3):
        Writer(tmp_path, replace(START, rank=rank, world_size=3))
    for rank in range(2):
        Writer(tmp_path, replace(START, rank=rank, job="another job"))
    assert sorted(path.name for path in (tmp_path / record.FOLDER).iterdir()) == [
        "rank-00000.jsonl",
        "rank-00001.jsonl",
    ]


def test_a_folder_that_cannot_be_written_gives_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / record.FOLDER).write_text("a file")
    opened = Writer(tmp_path, START)
    for number in range(1, 100):
        opened.add(step(number))
    opened.flush()
    assert re.fullmatch(r"warning: cannot record the steps in .*\n", capsys.readouterr().err)


def test_lines_that_could_not_be_written_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writer, "_SECONDS_BETWEEN_WRITES", 0.0)
    opened = writer.begin(tmp_path, START)
    folder, hidden = tmp_path / record.FOLDER, tmp_path / "hidden"
    for number in range(1, 21):
        if number == 5:
            folder.rename(hidden)
            folder.write_text("a file")
        if number == 9:
            folder.unlink()
            hidden.rename(folder)
        opened.add(step(number))
    writer.finish("end")
    rank = job.read(tmp_path).ranks[0]
    assert ([one.step for one in rank.steps], len(rank.starts)) == (list(range(1, 21)), 1)
    assert rank.end is not None
    assert re.fullmatch(r"warning: cannot record the steps in .*\n", capsys.readouterr().err)


def test_a_write_that_fails_in_the_middle_leaves_no_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = writer.begin(tmp_path, START)
    opened.flush()
    file = tmp_path / record.FOLDER / "rank-00000.jsonl"
    before = file.read_text()
    opened.add(step(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30, limits[1]))
    try:
        opened.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == before
    assert "File too large" in capsys.readouterr().err
    writer.finish("end")
    assert [one.step for one in job.read(tmp_path).ranks[0].steps] == [1]


def test_few_lines_wait_for_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_SECONDS_BETWEEN_WRITES", 0.0)
    monkeypatch.setattr(writer, "_MOST_WAITING", 10)
    folder = tmp_path / record.FOLDER
    folder.write_text("a file")
    opened = Writer(tmp_path, START)
    for number in range(1, 50):
        opened.add(step(number))
    folder.unlink()
    opened.add(step(50))
    rank = job.read(tmp_path).ranks[0]
    assert rank.starts == [START]
    assert [one.step for one in rank.steps] == list(range(40, 51))


def test_a_line_that_was_written_twice_counts_once(tmp_path: Path) -> None:
    opened = Writer(tmp_path, START)
    for number in range(1, 4):
        opened.add(step(number))
    opened.flush()
    path = record.path(tmp_path, 0)
    path.write_text(path.read_text() + record.encode(step(2)) + record.encode(step(3)) + record.encode(step(4)))
    assert [one.step for one in job.read(tmp_path).ranks[0].steps] == [1, 2, 3, 4]


def test_the_process_that_started_a_killed_rank_records_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer, output = tmp_path / "pointer", tmp_path / "output"
    monkeypatch.setenv(contract.RECORDS, str(pointer))
    for rank in (0, 1):
        writer.begin(output, replace(START, rank=rank)).add(step(1))
    assert writer.finish("failure", "ConnectionError: lost rank 1") == [output]
    path = record.path(output, 1)
    path.write_text(path.read_text().rpartition("\n{")[0] + '\n{"kind":"st')  # killed while it wrote
    failed = [Failed(0, "rank 0 exited with code 1", 12.0), Failed(1, "rank 1 was killed by SIGKILL", 11.0)]
    assert writer.failed(pointer, failed) == output
    read = job.read(output)
    assert [one.text for one in read.ranks[0].events] == ["ConnectionError: lost rank 1"]
    assert [one.text for one in read.ranks[1].events] == ["rank 1 was killed by SIGKILL"]
    assert read.end == Event(11.0, 1, "failure", text="rank 1 was killed by SIGKILL")


def test_a_rank_does_not_fail_before_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pointer = tmp_path / "pointer"
    monkeypatch.setenv(contract.RECORDS, str(pointer))
    opened = writer.begin(tmp_path, START)
    opened.add(step(20))
    opened.flush()
    writer.failed(pointer, [Failed(0, "killed", 20.0)])
    assert job.read(tmp_path).end == Event(21.0, 20, "failure", text="killed")
    writer.finish("end")


@pytest.mark.parametrize("ranks", [(1, 0), (0, 1), (1,), (2, 1)], ids=str)
def test_the_failure_of_a_rank_without_a_file_does_not_hide_the_others(
    ranks: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is killed before it trains has no file."""
    pointer = tmp_path / "pointer"
    monkeypatch.setenv(contract.RECORDS, str(pointer))
    writer.begin(tmp_path, START).flush()
    failures = [Failed(rank, f"rank {rank} was killed", 3.0 + rank) for rank in ranks]
    stop = Failed(3, "SIGTERM", 1.0, "stop")  # of a rank without a file: it may be a consequence
    assert writer.failed(pointer, [stop, *failures]) == tmp_path
    end = job.read(tmp_path).end
    assert end is not None
    assert end.text == f"rank {min(ranks)} was killed"
    writer.finish("end")


def test_a_job_without_records_has_no_failures_to_record(tmp_path: Path) -> None:
    assert writer.failed(tmp_path / "pointer", [Failed(0, "killed", 1.0)]) is None
