"""What the page of a job says, for jobs that ended in different ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.page import blocks
from cpu_train_stack.page.blocks import Bars, Chart, Page, Strip, Table, Texts
from cpu_train_stack.records import job as records
from cpu_train_stack.records import record
from cpu_train_stack.records.record import Event, Log, Sample, Start, Steps
from cpu_train_stack.report import document
from tests import synthetic_records

NOW = synthetic_records.BEGIN + 3600


def page(output: Path, result: dict[str, Any] | None = None) -> Page:
    return document.document(records.read(output), result or {}, [], NOW)


def found(of: Page, kind: type[Any]) -> dict[str, Any]:
    """The blocks of a kind by title."""
    return {one.title: one for section in of.sections for one in section.blocks if isinstance(one, kind)}


def tiles(of: Page) -> dict[str, str]:
    return {tile.label: tile.value for tile in of.tiles}


def test_a_good_job(tmp_path: Path) -> None:
    of = page(synthetic_records.write(tmp_path))
    assert (of.state, of.verdict) == ("finished", "Finished 100 of 100 steps in 1 min 51 s.")
    assert list(tiles(of)) == ["Duration", "Steps", "Loss", "Accuracy", "Samples/s", "Useful tokens/s"]
    assert of.notices == []
    assert [section.name for section in of.sections] == [
        "what-ran", "curves", "steps", "resources", "time-line", "plan", "configuration",
    ]  # fmt: skip
    charts = found(of, Chart)
    assert [curve.label for curve in charts["Training loss"].curves] == ["logged", "each step"]
    assert [row[0] for row in found(of, Table)[""].rows] == ["Evaluation loss", "Evaluation: accuracy"]
    assert len(charts["Step time over steps"].curves) == 4 + 1
    # Two threads that compute for 0.8 s of each step of 0.88 s.
    assert charts["CPU use"].curves[0].values[1:4] == pytest.approx([1.82] * 3, abs=0.02)
    (bars,) = found(of, Bars).values()
    assert [bar.label for bar in bars.bars] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert bars.bars[0].values == pytest.approx([0.28, 0.52, 0.02, 0.01, 0.05], abs=0.03)


def test_the_title_of_a_model_in_a_folder_has_its_class_and_the_data(tmp_path: Path) -> None:
    config = {"model_name_or_path": "/model", "dataset_name": "nyu-mll/glue", "dataset_config_name": "mrpc"}
    synthetic_records.write(tmp_path, change=lambda start: replace(start, model="BertModel", config=config))
    assert page(tmp_path).title.startswith("BertModel from /model on nyu-mll/glue mrpc")


def test_the_cpu_use_has_a_gap_at_each_start(tmp_path: Path) -> None:
    """Also if the new process has used more CPU time at its first sample than the old one in total."""
    synthetic_records.write(tmp_path, world_size=1, steps=10)
    again = synthetic_records.start(0, 1, 1, 100, time=synthetic_records.BEGIN + 36_000, first_step=10)
    synthetic_records.append(tmp_path, [again, *synthetic_records.lines(again, 10, 30, compute=8.0)])
    (curve,) = found(page(tmp_path), Chart)["CPU use"].curves
    assert [value is None for value in curve.values] == [True, False, True, False, False, False]


def test_the_speed_is_that_of_all_ranks_also_if_some_are_missing(tmp_path: Path) -> None:
    """16 rows on each of 4 ranks in a step of 0.88 s."""
    synthetic_records.write(tmp_path)
    complete = tiles(page(tmp_path))
    assert float(complete["Samples/s"]) == pytest.approx(4 * 16 / 0.88, rel=0.02)
    for rank in (2, 3):
        record.path(tmp_path, rank).unlink()
    of = page(tmp_path)
    assert float(tiles(of)["Samples/s"]) == pytest.approx(float(complete["Samples/s"]), rel=0.01)
    (notice,) = of.notices
    assert notice.items[0].startswith(
        "2 ranks of 4 are missing on this page (ranks 2-3): their nodes do not share"
    )


def test_a_failed_job_shows_the_first_failure(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, end=Event(synthetic_records.BEGIN + 200, 100, "failure", text="lost rank 2"))
    cause = Event(synthetic_records.BEGIN + 190, 100, "failure", text="out of memory")
    with record.path(tmp_path, 2).open("a") as file:
        file.write(record.encode(cause))
    of = page(tmp_path)
    assert of.state == "failed"
    assert of.verdict == "Failed on rank 2 after 100 of 100 steps in 3 min 10 s: out of memory"
    (strip,) = found(of, Strip).values()
    assert [lane.kind for lane in strip.lanes] == ["start", "evaluation", "checkpoint", "failure"]


def test_a_stopped_job_shows_the_signal(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, end=Event(synthetic_records.BEGIN + 200, 100, "stop", text="SIGTERM"))
    of = page(tmp_path)
    assert (of.state, of.verdict) == ("stopped", "Stopped by SIGTERM after 100 of 100 steps in 3 min 20 s.")


def test_a_job_that_was_asked_to_end_is_stopped_on_request(tmp_path: Path) -> None:
    text = "on request, with a checkpoint"  # of cpu_train_stack.rank.worker
    synthetic_records.write(tmp_path, end=Event(synthetic_records.BEGIN + 200, 100, "stop", text=text))
    expected = "Stopped on request, with a checkpoint, after 100 of 100 steps in 3 min 20 s."
    assert page(tmp_path).verdict == expected


def test_a_failure_that_names_its_rank_names_no_other(tmp_path: Path) -> None:
    """Rank 0 has the failures of ranks without records."""
    text = "rank 1 (local 1, node 0) was killed by SIGKILL"
    synthetic_records.write(tmp_path, end=Event(synthetic_records.BEGIN + 200, 100, "failure", text=text))
    assert page(tmp_path).verdict == f"Failed after 100 of 100 steps in 3 min 20 s: {text}"


def test_a_resumed_job_counts_the_repeated_steps(tmp_path: Path) -> None:
    for rank in range(2):
        first = synthetic_records.start(rank, 2, 2, 100)
        again = replace(first, time=first.time + 300, first_step=50)
        lines = synthetic_records.lines(first, 0, 70)
        synthetic_records.append(tmp_path, [first, *lines])
        synthetic_records.append(tmp_path, [again, *synthetic_records.lines(again, 50, 80)])
    of = page(tmp_path)
    assert of.state == "open"
    assert of.verdict.startswith("Still running, or killed: no end is recorded after 80 of 100 steps")
    assert "before this page was written" in of.about
    assert [notice.items for notice in of.notices] == [["20 steps were computed again after a restart"]]
    events = found(of, Table)["Events"]
    assert [row[5] for row in events.rows if row[3] == "start"] == ["", "started again from step 50"]
    loss = found(of, Chart)["Training loss"].curves[1]
    assert list(loss.steps) == list(range(1, 81))


def test_a_straggler_is_the_first_notice(tmp_path: Path) -> None:
    of = page(synthetic_records.write(tmp_path, slow={1: {"read": 0.5}}))
    assert of.notices[0].title == "Rank 1 slows the job down; cause: reading"
    assert "--dataloader_num_workers 1" in of.notices[0].items[0]
    (bars,) = found(of, Bars).values()
    assert [bar.mark for bar in bars.bars] == ["", "slowest", "", ""]


def test_a_job_that_has_not_done_a_step(tmp_path: Path) -> None:
    synthetic_records.append(tmp_path, [synthetic_records.start(0, 1, 1, 100)])
    of = page(tmp_path)
    assert of.verdict == "Still running, or killed: no end is recorded after 0 of 100 steps in 0 s."
    assert [section.name for section in of.sections] == ["what-ran", "time-line", "plan", "configuration"]
    assert list(tiles(of)) == ["Duration", "Steps"]


def test_without_the_rank_that_logs_there_is_the_loss_of_each_step(tmp_path: Path) -> None:
    synthetic_records.write(tmp_path)
    record.path(tmp_path, 0).unlink()
    of = page(tmp_path)
    assert [curve.label for curve in found(of, Chart)["Training loss"].curves] == ["each step"]
    assert tiles(of)["Loss"].startswith("0.2")
    assert "(rank 0): its node does not share the output folder" in of.notices[0].items[0]


def test_a_loss_that_is_not_a_number_leaves_a_gap(tmp_path: Path) -> None:
    own = synthetic_records.start(0, 1, 1, 100)
    lines = [
        replace(line, loss=None) if isinstance(line, Steps) and line.step > 5 else line
        for line in synthetic_records.lines(own, 0, 20)
        if not isinstance(line, Log)
    ]
    synthetic_records.append(tmp_path, [own, *lines])
    (curve,) = found(page(tmp_path), Chart)["Training loss"].curves
    assert list(curve.steps) == [1, 2, 3, 4, 5]


def test_a_job_that_only_evaluates(tmp_path: Path) -> None:
    own = synthetic_records.start(0, 1, 1, 0)
    evaluation = Log(own.time + 5, 0, {"eval_loss": 0.25, "eval_runtime": 4.0})
    synthetic_records.append(tmp_path, [own, evaluation, Event(own.time + 6, 0, "end")])
    of = page(tmp_path)
    assert of.verdict == "Finished in 6 s."
    assert tiles(of) == {"Duration": "6 s", "Evaluation loss": "0.25"}
    assert found(of, Table)[""].rows == [["Evaluation loss", "0.25 at step 0"]]


def test_a_long_reason_is_shortened_in_the_first_line_only(tmp_path: Path) -> None:
    reason = "line\n" * 200
    end = Event(synthetic_records.BEGIN + 200, 100, "failure", text=reason)
    of = page(synthetic_records.write(tmp_path, end=end))
    assert of.verdict.endswith("line line…")
    assert "\n" not in of.verdict
    assert found(of, Table)["Events"].rows[-1][5].endswith(reason)


def test_a_model_without_tokens_has_no_chart_of_tokens(tmp_path: Path) -> None:
    of = page(synthetic_records.write(tmp_path, slow={rank: {"tokens": 0} for rank in range(4)}))
    assert "Useful tokens per second" not in found(of, Chart)
    assert "Useful tokens/s" not in tiles(of)


def test_many_ranks_are_three_curves(tmp_path: Path) -> None:
    of = page(synthetic_records.write(tmp_path, world_size=12, steps=20, slow={7: {"compute": 1.2}}))
    labels = [curve.label for curve in found(of, Chart)["Step time over steps"].curves]
    assert labels[:2] == ["rank 7 (slowest)", "median of the ranks"]
    assert labels[2].endswith("(fastest)")


def test_the_quota_is_shown_only_if_it_paused_a_rank(tmp_path: Path) -> None:
    title = "Paused by the CPU quota"
    assert title not in found(page(synthetic_records.write(tmp_path / "good")), Chart)
    slow = {1: {"compute": 1.2, "throttled": 0.4}}
    assert title in found(page(synthetic_records.write(tmp_path / "slow", slow=slow)), Chart)


def test_delays_are_shown_only_if_they_take_more_than_one_percent_of_a_step(tmp_path: Path) -> None:
    title = "Ready to run while the core ran something else"
    few = {1: {"delayed": 0.005}}
    assert title not in found(page(synthetic_records.write(tmp_path / "few", slow=few)), Chart)
    many = {1: {"compute": 1.2, "delayed": 0.4}}
    shown = found(page(synthetic_records.write(tmp_path / "many", slow=many)), Chart)[title]
    assert {value for curve in shown.curves if curve.label == "rank 1" for value in curve.values} == {0.4, None}


def test_samples_without_delays_make_no_error(tmp_path: Path) -> None:
    for rank in range(12):
        own = synthetic_records.start(rank, 12, 2, 20)
        lines = synthetic_records.lines(own, 0, 20)
        first = [replace(one, delayed=None) if isinstance(one, Sample) and one.step < 9 else one for one in lines]
        synthetic_records.append(tmp_path, [own, *first])
    assert "Memory" in found(page(tmp_path), Chart)


def test_the_numbers_of_result_json_are_preferred(tmp_path: Path) -> None:
    result = {"metric_name": "f1", "metric_after": 0.875, "train_samples_per_second": 12.5}
    shown = tiles(page(synthetic_records.write(tmp_path), result))
    assert (shown["F1"], shown["Samples/s"]) == ("0.875", "12.5")


def test_warnings_of_plan_and_doctor(tmp_path: Path) -> None:
    def change(start: Start) -> Start:
        plan = {"reasons": ["a reason"], "warnings": ["a warning"]}
        checks = [{"name": "memory", "status": "warning", "detail": "little", "fix": "more"}]
        return replace(start, plan=plan, checks=checks if start.local_rank == 0 else [])

    of = page(synthetic_records.write(tmp_path, change=change))
    assert found(of, Texts)["Warnings of the plan"].items == ["a warning (all ranks)"]
    assert found(of, Table)["Warnings of doctor"].rows == [["memory", "warning", "little", "more", "0-1"]]


def test_a_document_is_json_with_short_numbers(tmp_path: Path) -> None:
    encoded = blocks.encode(page(synthetic_records.write(tmp_path)))
    assert encoded["is"] == "page"
    assert blocks.short(0.123456789) == 0.12346
    assert blocks.short(1234567.8) == 1234600
    assert blocks.short(float("nan")) is None
