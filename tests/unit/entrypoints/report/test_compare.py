"""Several jobs on one page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.page.blocks import Table
from cpu_train_stack.report import compare
from tests import synthetic_records
from tests.unit.entrypoints.report.test_folder import data_of


def test_two_jobs_on_one_page(tmp_path: Path) -> None:
    one = synthetic_records.write(tmp_path / "one")
    other = synthetic_records.write(
        tmp_path / "other",
        world_size=2,
        change=lambda start: replace(start, config={**start.config, "learning_rate": 1e-4}),
    )
    file = compare.write([one, other], tmp_path / "compare.html")
    found = json.loads(data_of(file.read_text(encoding="utf-8")))
    blocks = {block["title"]: block for section in found["sections"] for block in section["blocks"]}
    assert found["title"] == "Comparison of one and other"
    assert blocks[""]["rows"][0] == ["end", "finished", "finished"]
    assert [curve["label"] for curve in blocks["Training loss"]["curves"]] == ["one", "other"]
    assert blocks["Configuration: 1 different"]["rows"] == [["learning_rate", "5e-05", "0.0001"]]
    assert blocks["Configuration: 2 the same"]["folded"]
    different = {row[0] for row in blocks["Software and machine: 2 different"]["rows"]}
    assert different == {"ranks", "rows per step"}


def test_the_title_of_jobs_with_long_names_counts_them(tmp_path: Path) -> None:
    jobs = [synthetic_records.write(tmp_path / (letter * 100)) for letter in "ab"]
    file = compare.write(jobs, tmp_path / "compare.html")
    assert json.loads(data_of(file.read_text(encoding="utf-8")))["title"] == "Comparison of 2 jobs"


def test_a_job_has_the_same_color_in_a_chart_that_lacks_another_one(tmp_path: Path) -> None:
    one = synthetic_records.write(tmp_path / "one", steps=40)  # without an evaluation
    other = synthetic_records.write(tmp_path / "other")
    found = json.loads(data_of(compare.write([one, other], tmp_path / "compare.html").read_text(encoding="utf-8")))
    charts = {block["title"]: block["curves"] for block in found["sections"][1]["blocks"]}
    for title, jobs in (("Training loss", ["one", "other"]), ("Evaluation: accuracy", ["other"])):
        assert [(curve["label"], curve["color"]) for curve in charts[title]] == [
            (job, ["one", "other"].index(job)) for job in jobs
        ]


def test_the_rows_that_differ_come_first_and_the_others_are_folded() -> None:
    first, second = compare.differences("Title", {"a": {"x": "1", "y": "2"}, "b": {"x": "1"}})
    assert isinstance(first, Table)
    assert isinstance(second, Table)
    assert (first.rows, first.folded) == ([["y", "2", "–"]], False)
    assert (second.rows, second.folded) == ([["x", "1"]], True)


def test_folders_are_named_by_what_tells_them_apart() -> None:
    assert compare.names([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
    assert compare.names([Path("runs/a/out"), Path("runs/b/out")]) == ["a/out", "b/out"]


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["a"], "found 1 folder to compare, expected 2 to 8"),
        (list("abcdefghi"), "found 9 folders to compare, expected 2 to 8"),
        (["a", "./a"], "'a' is named twice"),
        (["a", "b"], "holds no records"),
    ],
    ids=["one", "nine", "twice", "empty"],
)
def test_other_folders_are_refused_in_one_line(folders: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        compare.write([Path(folder) for folder in folders], tmp_path / "compare.html")
