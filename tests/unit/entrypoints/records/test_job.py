"""The records of many ranks are read in little memory, and say the same."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.records import job, record, stragglers
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.record import Event, Steps
from cpu_train_stack.report import document
from tests import synthetic_records

RANKS, STEPS = 4, 1000


def read(output: Path) -> tuple[RecordedJob, int]:
    """The job, and the most memory that was in use while it was read."""
    tracemalloc.start()
    found = job.read(output)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, peak


def test_few_records_of_a_large_job_stay_and_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {3: {"compute": 1.3, "throttled": 0.5}}
    synthetic_records.write(tmp_path, RANKS, STEPS, slow=slow)
    for rank, before in job.read(tmp_path).ranks.items():  # a restart within what becomes one record
        again = synthetic_records.start(rank, RANKS, 2, 1333, time=before.steps[-1].time + 600, first_step=967)
        more: dict[str, Any] = {"slowest": 1.3, **slow.get(rank, {})}
        lines = synthetic_records.lines(again, 967, 1333, **more)
        synthetic_records.append(tmp_path, [again, *lines, Event(lines[-1].time, 1333, "end")])
    complete, whole = read(tmp_path)
    monkeypatch.setattr(job, "MOST_RECORDS", 134 * RANKS)
    monkeypatch.setattr(job, "FEWEST_RECORDS", 1)
    monkeypatch.setattr(job, "BYTES_AT_ONCE", 33_000)
    short, peak = read(tmp_path)
    assert peak < 0.35 * whole
    for one in short.ranks.values():
        assert 67 <= len(one.steps) <= 134
        assert len(one.samples) <= 134
        assert sum(steps.steps for steps in one.steps) == 1333
        assert one.repeated == 33
    assert len({tuple(one.step for one in rank.steps) for rank in short.ranks.values()}) == 1
    for number, share in stragglers.shares(complete).items():
        other = stragglers.share_of(short.ranks[number])
        assert other is not None
        assert vars(replace(other, remote=0.0)) == pytest.approx(vars(replace(share, remote=0.0)), rel=0.01)
    found, expected = stragglers.find(short), stragglers.find(complete)
    assert found is not None
    assert expected is not None
    assert (found.rank, found.cause) == (expected.rank, expected.cause) == (3, "quota")
    now = complete.time
    assert document.document(short, {}, [], now).verdict == document.document(complete, {}, [], now).verdict


def test_the_step_since_which_the_loss_is_not_a_number_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic_records.write(tmp_path, 1, STEPS)
    path = record.path(tmp_path, 0)
    lines = [record.decode(text) for text in path.read_text().splitlines()]
    monkeypatch.setattr(job, "MOST_RECORDS", 0)
    monkeypatch.setattr(job, "FEWEST_RECORDS", 133)
    path.write_text(
        "".join(
            record.encode(replace(line, loss=None) if isinstance(line, record.Steps) and line.step > 782 else line)
            for line in lines
            if line is not None
        )
    )
    steps = job.read(tmp_path).first.steps
    assert len(steps) <= 133
    assert max(one.step for one in steps if one.loss is not None) == 782


@pytest.mark.parametrize("lost", ["start", "losses"])
def test_a_rank_whose_records_cannot_be_joined_leaves_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    synthetic_records.write(tmp_path, 2, 1000)
    file = tmp_path / record.FOLDER / "rank-00001.jsonl"
    rows = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lost == "start":
        rows = rows[1:]
    else:
        lines = [record.decode(row) for row in rows]
        rows = [
            f"{record.encode(replace(line, loss=None))}\n" if isinstance(line, Steps) and line.step % 2 else row
            for line, row in zip(lines, rows, strict=True)
        ]
    file.write_text("".join(rows), encoding="utf-8")
    monkeypatch.setattr(job, "MOST_RECORDS", 0)
    monkeypatch.setattr(job, "FEWEST_RECORDS", 300)
    assert len(job.read(tmp_path).ranks[0].steps) > 100
