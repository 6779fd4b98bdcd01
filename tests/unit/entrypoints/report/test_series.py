"""Long series as few points, and ranks joined by their steps."""

from __future__ import annotations

import pytest

from cpu_train_stack.records.record import Sample, Steps
from cpu_train_stack.report import series
from cpu_train_stack.report.series import Point


def steps(numbers: list[int], seconds: float = 1.0, loss: float | None = 0.5) -> list[Steps]:
    """Records up to these steps; each covers the steps since the one before."""
    found, before = [], 0
    for step in numbers:
        size = step - before
        found.append(
            Steps(
                step * 1.0,
                step,
                size,
                seconds * size,
                0.3,
                0.5,
                0.1 * size,
                0.0,
                0.0,
                seconds,
                16 * size,
                100,
                90,
                loss,
            )
        )
        before = step
    return found


def points(values: list[float]) -> list[Point]:
    return [Point(place, place * 2.0, value) for place, value in enumerate(values)]


def test_a_short_series_stays_as_it_is() -> None:
    assert series.extremes(points([3.0, 1.0, 2.0])) == points([3.0, 1.0, 2.0])


def test_a_thinned_series_keeps_a_single_peak_and_a_single_dip() -> None:
    values = [1.0] * 20_000
    values[7001], values[13_003] = 50.0, -50.0
    kept = series.extremes(points(values))
    assert len(kept) <= series.MOST
    assert {50.0, -50.0} <= {one.value for one in kept}
    assert [one.step for one in kept] == sorted({one.step for one in kept})


def test_steps_of_few_records_are_not_joined() -> None:
    found = series.intervals({0: steps([1, 2, 3]), 1: steps([1, 2])})
    assert [(one.step, sorted(one.ranks)) for one in found] == [(1, [0, 1]), (2, [0, 1]), (3, [0])]
    assert found[0].ranks[0].busy == pytest.approx(0.9)


def test_intervals_lose_no_step() -> None:
    found = series.intervals({0: steps(list(range(1, 20_001))), 1: steps(list(range(4, 20_001, 4)))})
    assert len(found) <= series.MOST
    for rank in (0, 1):
        totals = [one.ranks[rank] for one in found if rank in one.ranks]
        assert sum(total.steps for total in totals) == 20_000
        assert sum(total.rows for total in totals) == 16 * 20_000
    assert found[-1].step == 20_000


def test_no_steps_make_no_intervals() -> None:
    assert series.intervals({}) == []
    assert series.intervals({0: []}) == []


def test_the_loss_of_a_step_is_the_mean_of_the_ranks_that_have_one() -> None:
    found = series.mean_losses({0: steps([1, 2], loss=0.2), 1: steps([1, 2], loss=0.4), 2: steps([1], loss=None)})
    assert [one.value for one in found] == pytest.approx([0.3, 0.3])


def test_samples_of_ranks_are_joined_by_time() -> None:
    def sample(time: float) -> Sample:
        return Sample(time, int(time), 1, 0.0, 0.0, 0)

    rows = series.moments({0: [sample(0.0), sample(5.0), sample(10.0)], 1: [sample(0.4), sample(5.2)]})
    assert [sorted(row) for _, row in rows] == [[0, 1], [0, 1], [0]]
    assert series.moments({}) == []


def test_samples_before_and_after_a_pause_keep_their_points() -> None:
    samples = [Sample(begin + 5.0 * one, one, 1, 0.0, 0.0, 0) for begin in (0, 36_000) for one in range(200)]
    rows = series.moments({0: samples, 1: samples})
    assert 150 < len(rows) <= series.MOST // 2
    assert [row[0] for _, row in rows][-1] == samples[-1]
    assert len([point for point, _ in rows if point.time < 36_000]) == len(rows) // 2


def test_of_many_ranks_the_highest_and_the_lowest_get_a_curve() -> None:
    assert series.chosen({0: 1.0, 1: 2.0}, ("slowest", "fastest")) == {0: "rank 0", 1: "rank 1"}
    many = {rank: float(rank) for rank in range(20)}
    assert series.chosen(many, ("slowest", "fastest")) == {19: "rank 19 (slowest)", 0: "rank 0 (fastest)"}
    assert len(series.chosen(dict.fromkeys(range(20), 1.0), ("slowest", "fastest"))) == 2
