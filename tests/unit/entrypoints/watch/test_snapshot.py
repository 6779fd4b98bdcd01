"""What `watch` shows of jobs in different states, and how it reads their growing files."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.records import job, record
from cpu_train_stack.records.record import Event
from cpu_train_stack.watch import plain, snapshot
from cpu_train_stack.watch.snapshot import Snapshot
from cpu_train_stack.watch.tail import Tail
from tests import synthetic_records
from tests.synthetic_records import BEGIN

FAILURE = Event(BEGIN + 120, 50, "failure", text="rank 1 was killed by SIGKILL")


def of(output: Path, now: float = BEGIN + 60) -> Snapshot:
    return snapshot.of(job.read(output), now)


def without_end(output: Path) -> Path:
    """As the files are while the job runs."""
    for path in (output / record.FOLDER).iterdir():
        path.write_text("".join(row for row in path.read_text().splitlines(keepends=True) if '"end"' not in row))
    return output


def test_a_finished_job(tmp_path: Path) -> None:
    found = of(synthetic_records.write(tmp_path))
    assert (found.state, found.is_over, found.step, found.planned) == ("finished", True, 100, 100)
    assert found.title == "bert-base-uncased, 4 ranks on 2 nodes, ccl, pin 2.13"
    assert found.samples == pytest.approx(64 / 0.88, rel=0.02)
    assert found.tokens == pytest.approx(4000 / 0.88, rel=0.02)
    assert [step for step, _ in found.loss] == list(range(10, 101, 10))
    assert (found.metric_name, [step for step, _ in found.metric]) == ("eval_accuracy", [50, 100])
    assert {event.name for event in found.events} == {"checkpoint", "evaluation"}
    assert found.straggler is None
    assert plain.ending(found).startswith("finished 100 steps in 1 min")


def test_a_running_job_knows_the_time_that_is_left(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, change=lambda start: replace(start, last_step=300))
    without_end(tmp_path)
    last = job.read(tmp_path).time
    found = of(tmp_path, last + 1)
    assert (found.state, found.is_over) == ("running", False)
    # 200 steps of 0.88 s, and 4 s for evaluation and checkpoint in 50 steps
    assert found.remaining == pytest.approx(200 * (0.88 + 4 / 50), rel=0.02)
    assert " step 100/300 (33%), 3 min 12 s left, loss 0." in plain.line(found)
    silent = of(tmp_path, last + 61)
    assert silent.state == "silent"
    assert "no record for 1 min 1 s: the job may hang, or was killed" in plain.line(silent)


def test_a_job_that_no_longer_runs_is_over(tmp_path: Path) -> None:
    without_end(synthetic_records.write(tmp_path))
    found = snapshot.of(job.read(tmp_path), BEGIN + 200, runs=False)
    assert (found.state, found.is_over) == ("gone", True)
    assert plain.ending(found) == "ended after step 100 without a recorded end: it was stopped or killed"


def test_a_long_step_is_not_silence(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, slow={1: {"compute": 40.0}}, steps=20)
    without_end(tmp_path)
    last = job.read(tmp_path).time
    assert of(tmp_path, last + 150).state == "running"
    assert of(tmp_path, last + 250).state == "silent"


def test_a_failed_job_and_its_restart(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, end=FAILURE, world_size=2)
    waiting = of(tmp_path, FAILURE.time + 29)
    assert (waiting.state, waiting.is_over) == ("restarting", False)
    assert "; failed (rank 1 was killed by SIGKILL): waiting for a restart" in plain.line(waiting)
    assert snapshot.of(job.read(tmp_path), FAILURE.time + 300, runs=True).state == "restarting"
    found = of(tmp_path, FAILURE.time + 31)
    assert (found.state, found.is_over, found.ending) == ("failed", True, FAILURE.text)
    assert "failed at step 100 after 2 min: rank 1 was killed by SIGKILL" in plain.ending(found)
    for rank in (0, 1):
        own = synthetic_records.start(rank, 2, 2, 100, first_step=50)
        own = replace(own, time=BEGIN + 200)
        synthetic_records.append(tmp_path, [own, *synthetic_records.lines(own, 50, 80)])
    again = of(tmp_path, BEGIN + 240)
    assert (again.state, again.step, again.restarts) == ("running", 80, 1)
    assert max(step for step, _ in again.loss) == 80


def test_a_stopped_job_is_over_at_once(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, end=Event(BEGIN + 120, 50, "stop", text="SIGTERM"))
    found = of(tmp_path, BEGIN + 121)
    assert (found.state, found.is_over) == ("stopped", True)
    assert plain.ending(found) == "stopped at step 100 after 2 min: SIGTERM"


def test_the_straggler_is_in_the_line(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, slow={3: {"read": 0.5}})
    found = of(without_end(tmp_path))
    assert re.search(r"; rank 3 \(node 1, node1\) .* by 0\.\d+ s per step \(..%\): reading$", plain.line(found))


def test_a_job_without_tokens_logs_and_metrics(tmp_path: Path) -> None:
    own = synthetic_records.start(0, 1, 1, 20)
    lines = [
        replace(line, computed=0, useful=0) if isinstance(line, record.Steps) else line
        for line in synthetic_records.lines(own, 0, 20)
        if not isinstance(line, record.Log)
    ]
    synthetic_records.append(tmp_path, [own, *lines])
    found = of(tmp_path)
    assert (found.tokens, found.metric_name, found.metric) == (None, "", [])
    assert len(found.loss) == 20
    assert "tokens" not in plain.line(found)
    synthetic_records.append(tmp_path / "new", [own])
    assert plain.line(of(tmp_path / "new")).endswith("  step 0/20 (0%)")


def test_growing_files_are_read_where_the_last_look_ended(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert tail.read() is None
    own = synthetic_records.start(0, 1, 1, 40)
    lines = [own, *synthetic_records.lines(own, 0, 40)]
    texts = "".join(map(record.encode, lines))
    path = record.path(tmp_path, 0)
    path.parent.mkdir()
    for end in range(0, len(texts), 777):  # in the middle of lines
        path.write_text(texts[:end])
        tail.read()
    path.write_text(texts)
    found = tail.read()
    assert found is not None
    assert found.ranks[0] == job.read(tmp_path).ranks[0]
    path.write_text(record.encode(replace(own, last_step=7)))  # another job began
    found = tail.read()
    assert found is not None
    assert (found.first.start.last_step, found.step) == (7, 0)


def test_a_file_that_is_replaced_is_another_jobs(tmp_path: Path) -> None:
    tail = Tail(synthetic_records.write(tmp_path, world_size=1, steps=20))
    before = tail.read()
    assert before is not None
    assert before.step == 20
    other = synthetic_records.write(
        tmp_path / "other", world_size=1, steps=40, change=lambda start: replace(start, time=BEGIN + 1000)
    )
    for path in (tmp_path / record.FOLDER).iterdir():
        path.write_bytes((other / record.FOLDER / path.name).read_bytes())
    after = tail.read()
    assert after is not None
    assert (after.step, len(after.first.starts), len(after.first.steps)) == (40, 1, 40)


def test_of_long_files_the_start_and_the_end_are_read(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, world_size=2, steps=5000)
    found = Tail(tmp_path).read()
    assert found is not None
    assert [len(found.ranks[rank].steps) < 2000 for rank in (0, 1)] == [False, True]
    assert snapshot.of(found, BEGIN).shares == snapshot.of(job.read(tmp_path), BEGIN).shares


def test_the_newest_records_below_a_folder(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path / "old", world_size=1)
    synthetic_records.write(tmp_path / "runs" / "new", world_size=2)
    os.utime(record.path(tmp_path / "old", 0), (1, 1))
    found = Tail(tmp_path).read()
    assert found is not None
    assert found.folder == tmp_path / "runs" / "new"


def test_records_that_this_user_may_not_see_are_not_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's folder of records has the mode rwxr--r--."""
    synthetic_records.write(tmp_path / "own", world_size=1)
    synthetic_records.write(tmp_path / "other", world_size=1)
    stat = Path.stat

    def refuse_other(path: Path, **options: bool) -> os.stat_result:
        if path == record.path(tmp_path / "other", 0):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse_other)
    found = Tail(tmp_path).read()
    assert found is not None
    assert found.folder == tmp_path / "own"


def test_a_file_that_a_new_job_removes_while_it_is_looked_for_is_ignored(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, world_size=1)
    record.path(tmp_path, 1).symlink_to(tmp_path / "removed")  # listed, and gone when it is read
    found = Tail(tmp_path).read()
    assert found is not None
    assert list(found.ranks) == [0]
