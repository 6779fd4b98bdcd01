"""What slows down all ranks, and what will end the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.records import findings, job
from cpu_train_stack.records.job import Rank, RecordedJob
from tests import synthetic_records
from tests.synthetic_records import GIBIBYTE


def changed(found: RecordedJob, change: Callable[[Rank], Rank]) -> RecordedJob:
    return replace(found, ranks={number: change(rank) for number, rank in found.ranks.items()})


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_healthy_job_has_none(world_size: int, tmp_path: Path) -> None:
    assert findings.find(job.read(synthetic_records.write(tmp_path, world_size=world_size))) == []


@pytest.mark.parametrize(
    ("every_rank", "what"),
    [
        ({"throttled": 0.2}, "the CPU quota pauses every rank for 0.2"),
        ({"delayed": 0.3}, "every rank waits 0.30 s per step (34%) for cores on which other processes run"),
        (
            {"slowest": 1.6, "delayed": 0.5},
            "every rank waits 0.50 s per step (30%) for cores on which other processes run",
        ),
        ({"slowest": 1.6}, "every rank waits for the network for 50% of a step"),
    ],
    ids=["quota", "shared cores", "shared cores and late communication", "network"],
)
def test_a_cause_that_all_ranks_share_is_found(every_rank: dict[str, float], what: str, tmp_path: Path) -> None:
    found = findings.find(job.read(synthetic_records.write(tmp_path, slow=dict.fromkeys(range(4), every_rank))))
    assert [one.what[: len(what)] for one in found] == [what]


def test_ranks_of_one_node_do_not_wait_for_the_network(tmp_path: Path) -> None:
    slow = {rank: {"slowest": 1.6} for rank in range(4)}
    found = job.read(synthetic_records.write(tmp_path, slow=slow, ranks_per_node=4))
    assert found.nodes == 1
    assert findings.find(found) == []


def test_a_cause_of_one_rank_is_left_to_the_straggler(tmp_path: Path) -> None:
    slow = {1: {"compute": 1.3, "throttled": 0.5}}
    assert findings.find(job.read(synthetic_records.write(tmp_path, slow=slow))) == []


def test_memory_that_grows_is_found(tmp_path: Path) -> None:
    def leaks(rank: Rank) -> Rank:
        is_first = rank.start.rank == 0
        return replace(
            rank,
            samples=[
                replace(one, memory=int((2 + place * 0.02 * is_first) * GIBIBYTE))
                for place, one in enumerate(rank.samples)
            ],
        )

    found = findings.find(changed(job.read(synthetic_records.write(tmp_path, steps=400)), leaks))
    assert [one.what for one in found] == ["the memory of rank 0 grows: 2.59 GiB, then 3.39 GiB"]


def test_a_loss_that_is_not_a_number_is_found(tmp_path: Path) -> None:
    def diverges(rank: Rank) -> Rank:
        return replace(rank, steps=[replace(one, loss=None) if one.step > 70 else one for one in rank.steps])

    found = findings.find(changed(job.read(synthetic_records.write(tmp_path)), diverges))
    assert [one.text for one in found] == ["The loss is not a number since step 71: lower the learning rate"]


def test_a_job_without_a_loss_has_none(tmp_path: Path) -> None:
    def without(rank: Rank) -> Rank:
        return replace(rank, steps=[replace(one, loss=None) for one in rank.steps])

    assert findings.find(changed(job.read(synthetic_records.write(tmp_path)), without)) == []
