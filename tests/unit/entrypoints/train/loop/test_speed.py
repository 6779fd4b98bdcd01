"""The speed of training steps, and the line that reports it."""

from __future__ import annotations

import pytest

from cpu_train_stack.train.loop.speed import Speed, progress_line, steps_within


def clocked(durations: list[float], rows: int, world_size: int) -> Speed:
    speed = Speed(world_size)
    for duration in durations:
        speed.add(duration, rows)
    return speed


def test_speed_counts_the_rows_of_all_ranks() -> None:
    assert clocked([9.0, 2.0, 2.0], rows=8, world_size=2).rate() == 8.0


def test_steady_speed_leaves_the_first_five_of_many_steps_out() -> None:
    assert clocked([9.0] * 5 + [1.0] * 6, rows=3, world_size=1).rate() == 3.0
    assert clocked([9.0] * 5 + [1.0] * 6, rows=3, world_size=1).rate(last=1) == 3.0


def test_one_step_has_no_steady_speed() -> None:
    assert clocked([2.0], rows=3, world_size=1).rate() is None
    assert clocked([], rows=3, world_size=1).rate() is None


def test_a_progress_line_has_step_loss_rate_and_speed() -> None:
    line = progress_line(50, 345, {"loss": 0.61, "learning_rate": 4.1e-5}, 44.24)
    assert line == "step 50/345  loss 0.6100  lr 4.1e-05  44.2 samples/s"
    assert progress_line(1, 2, {}, None) == "step 1/2"


@pytest.mark.parametrize(
    ("durations", "steps"),
    [((0.5, 0.4), 10), ((7.0, 0.1), 1), ((0.001,), 100), ((0.0, 0.0), 100)],
    ids=["the slowest rank", "long steps", "short steps", "steps without a duration"],
)
def test_the_steps_within_some_seconds_follow_from_the_slowest_rank(
    durations: tuple[float, ...], steps: int
) -> None:
    assert steps_within(5.0, durations) == steps
