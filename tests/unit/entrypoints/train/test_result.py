"""result.json, the speed that it reports, and what a rank prints."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from entrypoints.train import result
from entrypoints.train.loop import console
from entrypoints.train.loop.speed import Speed, progress_line


def test_the_result_is_whole_json_without_a_second_file(tmp_path: Path) -> None:
    path = result.write(tmp_path, {"loss": float("nan"), "rows": [1.5, float("inf")], "map": {1: (2,)}})
    assert json.loads(path.read_text()) == {"loss": None, "rows": [1.5, None], "map": {"1": [2]}}
    assert [item.name for item in tmp_path.iterdir()] == ["result.json"]


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    result.write(tmp_path, {"a": 1})
    with pytest.raises(TypeError):
        result.write(tmp_path, {"a": 2, "b": object()})
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": 1}


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([], (None, None)), ([3.0], (3.0, 3.0)), ([4.0, 2.0, 1.0], (4.0, 1.0)), ([4.0, 2.0] * 10, (3.0, 3.0))],
    ids=["none", "one", "few", "many"],
)
def test_first_and_last_loss_are_means_that_do_not_overlap(
    losses: list[float], expected: tuple[float | None, float | None]
) -> None:
    assert result.window_means(losses, 10) == expected


def clocked(durations: list[float], rows: int, world_size: int) -> Speed:
    now = [0.0]
    speed = Speed(world_size, clock=lambda: now[0])
    for duration in durations:
        speed.restart()
        speed.add(rows)
        now[0] += duration
        speed.step()
        now[0] += 100.0  # an evaluation or a save between two steps
    return speed


def test_speed_counts_the_rows_of_all_ranks_and_no_evaluation() -> None:
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


def test_every_line_of_another_rank_carries_its_number() -> None:
    below = io.StringIO()
    stream = console.PrefixedStream(below, "[rank 3] ")
    for text in ("one\ntwo", " more\n", "", "three\n"):
        stream.write(text)
    assert below.getvalue() == "[rank 3] one\n[rank 3] two more\n[rank 3] three\n"


def test_bf16_is_warned_about_only_where_it_is_emulated() -> None:
    assert console.bf16_warning(["avx512_bf16", "amx_bf16"]) is None
    assert "this CPU has no bf16 instructions" in str(console.bf16_warning(["emulated"]))
    mixed = str(console.bf16_warning(["amx_bf16", "emulated"]))
    assert "rank 1 have" in mixed
    assert "no faster" in mixed
