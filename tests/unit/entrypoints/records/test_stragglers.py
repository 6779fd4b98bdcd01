"""Which rank is named as the slowest, and the cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.records import job, stragglers
from cpu_train_stack.records.record import Sample, Steps
from tests import synthetic_records

CAUSES = {
    "quota": {"compute": 1.3, "throttled": 0.5},
    "shared cores": {"compute": 1.3, "delayed": 0.45},
    "reading": {"read": 0.5},
    "longer rows": {"compute": 1.3, "tokens": 1600},
    "unknown": {"compute": 1.3},
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_slowest_rank_is_named_with_the_cause(cause: str, world_size: int, tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, world_size=world_size, slow={1: CAUSES[cause]})
    found = stragglers.find(job.read(tmp_path))
    assert found is not None
    assert (found.rank, found.node_rank, found.cause) == (1, 0, cause)
    assert found.excess == pytest.approx(0.5, abs=0.05)
    assert found.text.startswith("rank 1 (node 0, node0) is slower than the others by 0.")


def test_a_rank_that_waits_longer_for_a_shared_core_is_named_with_this_cause(tmp_path: Path) -> None:
    """Others wait, too, and most of each rank's time is waiting."""
    slow = {0: {"compute": 5.7, "delayed": 4.9}, 1: {"compute": 8.4, "delayed": 7.6}}
    found = stragglers.find(job.read(synthetic_records.write(tmp_path, world_size=2, slow=slow)))
    assert found is not None
    assert (found.rank, found.cause) == (1, "shared cores")


def test_the_mean_of_the_ranks_and_the_networks_part(tmp_path: Path) -> None:
    read = job.read(synthetic_records.write(tmp_path, world_size=2, slow={1: {"compute": 1.3}}))
    means = stragglers.mean_parts(read)
    # A step of 1.38 s: rank 0 waits 0.55 s, rank 1 0.05 s.
    assert means == pytest.approx((0.775, 0.007, 0.218, 0.037), abs=0.02)


def test_ranks_that_wait_for_each_other_in_turns_do_not_wait_for_the_network(tmp_path: Path) -> None:
    slow = [
        job.read(synthetic_records.write(tmp_path / str(rank), world_size=2, slow={rank: {"compute": 1.3}}))
        for rank in range(2)
    ]
    ranks = {
        number: replace(rank, steps=[slow[one.step % 2].ranks[number].steps[one.step - 1] for one in rank.steps])
        for number, rank in slow[0].ranks.items()
    }
    means = stragglers.mean_parts(replace(slow[0], ranks=ranks))
    assert means is not None
    assert (means.waiting, means.network) == pytest.approx((0.218, 0.037), abs=0.02)


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_no_rank_of_a_healthy_job_is_named(world_size: int, tmp_path: Path) -> None:
    assert stragglers.find(job.read(synthetic_records.write(tmp_path, world_size=world_size))) is None


def test_a_rank_that_is_slow_in_some_steps_is_not_named(tmp_path: Path) -> None:
    read = job.read(synthetic_records.write(tmp_path, world_size=2, slow={1: {"compute": 1.3}}))
    healthy = job.read(synthetic_records.write(tmp_path / "healthy", world_size=2))
    mixed = replace(read.ranks[1], steps=[*read.ranks[1].steps[:40], *healthy.ranks[1].steps[40:]])
    assert stragglers.find(replace(read, ranks={0: read.ranks[0], 1: mixed})) is None
    assert stragglers.find(read) is not None


@pytest.mark.parametrize(
    ("cause", "change"), [("clock rate", {"clock": 2100.0}), ("remote memory", {"remote": 0.6})]
)
def test_clock_rate_and_remote_memory(cause: str, change: Mapping[str, float], tmp_path: Path) -> None:
    read = job.read(synthetic_records.write(tmp_path, slow={2: {"compute": 1.1}}))

    values: dict[int, dict[str, Any]] = {number: {"clock": 2800.0, "remote": 0.01} for number in read.ranks}
    values[2].update(change)
    ranks = {
        number: replace(rank, samples=[replace(one, **values[number]) for one in rank.samples])
        for number, rank in read.ranks.items()
    }
    found = stragglers.find(replace(read, ranks=ranks))
    assert found is not None
    assert (found.rank, found.cause) == (2, cause)


def resumed(pause: float, slow_steps: int = 0) -> job.Rank:
    """100 steps of 1 s, then 20 more after `pause` seconds, of which the first `slow_steps` take 10 s."""
    found, now = job.Rank(), synthetic_records.BEGIN
    for first, last in ((0, 100), (100, 120)):
        found.starts.append(replace(synthetic_records.start(0, 1, 1, 120), time=now, first_step=first))
        found.samples.append(Sample(now, first, 1, 0.0, 0.0, 0))
        for done in range(1, last - first + 1):
            seconds = 10.0 if first and done <= slow_steps else 1.0
            now += seconds
            step = Steps(now, first + done, 1, seconds, 0.3, 0.5, 0.0, 0.1, 0.1, seconds, 8, 100, 100, 1.0)
            found.steps.append(step)
            if done % 5 == 0:
                found.samples.append(Sample(now, first + done, 1, 1.9 * done, 0.4 * done, 0))
        now += pause
    return found


def test_the_time_between_a_stop_and_the_resumed_run_does_not_count() -> None:
    found = stragglers.share_of(resumed(pause=36_000.0))
    assert found is not None
    assert (found.processor, found.throttled) == pytest.approx((0.95, 0.2))


def test_the_first_steps_after_each_start_do_not_count() -> None:
    found = stragglers.share_of(resumed(pause=30.0, slow_steps=3))
    assert found is not None
    assert (found.steps, found.seconds) == pytest.approx((114, 1.0))


def test_the_last_steps_only(tmp_path: Path) -> None:
    slow = job.read(synthetic_records.write(tmp_path, world_size=2, slow={1: {"compute": 1.3}}))
    healthy = job.read(synthetic_records.write(tmp_path / "healthy", world_size=2))
    ranks = {
        number: replace(rank, steps=[*healthy.ranks[number].steps[:70], *rank.steps[70:]])
        for number, rank in slow.ranks.items()
    }
    assert stragglers.find(replace(slow, ranks=ranks)) is None
    assert stragglers.find(replace(slow, ranks=ranks), last=20) is not None
