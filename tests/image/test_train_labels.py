"""Text classifiers that predict a number, or any number of classes, for each row."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.image.train_runs import Runs, line, run_alone, scored

MOODS = ("joy", "anger", "fear")


def moody(count: int) -> str:
    """The moods whose words are in the text: none, one, two or three."""
    rows = []
    for number in range(count):
        moods = [mood for place, mood in enumerate(MOODS) if number >> place & 1]
        rows.append(
            {"text": f"{number % 3} " + " ".join(f"{mood[0]} {mood[0]}" for mood in moods), "label": moods}
        )
    return "".join(json.dumps(row) + "\n" for row in rows)


def flags(output: str, **changes: object) -> list[str]:
    shared = {"num_train_epochs": 12, "learning_rate": 0.003, "per_device_train_batch_size": 8, "seed": 1}
    return line(output, **{**shared, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("labels")
    made.chmod(0o777)
    (made / "scores.csv").write_text(scored(56))
    (made / "whole.csv").write_text(
        "text,label\n" + "".join(f"{'good ' * (n % 4)}end,{n % 4}\n" for n in range(16))
    )
    (made / "moods.jsonl").write_text(moody(64))
    return made


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, folder: Path) -> Runs:
    scores = {"validation_file": "/output/scores.csv", "label_column_name": "score"}
    moods = {"validation_file": "/output/moods.jsonl"}
    lines = {
        "numbers": flags(
            "/output/numbers", train_file="/output/scores.csv", bf16=True, eval_on_start=True, **scores
        ),
        "numbers again": flags("/output/again", model_name_or_path="/output/numbers", train_file=None, **scores),
        "integers": flags(
            "/output/integers", train_file="/output/whole.csv", validation_file="/output/whole.csv",
            do_regression=True, max_steps=2,
        ),
        "sets": flags("/output/sets", train_file="/output/moods.jsonl", eval_on_start=True, **moods),
        "smoothed": flags("/output/x", train_file="/output/moods.jsonl", label_smoothing_factor=0.1, **moods),
        "smoothed answers": line(
            "/output/x", train_file="/data/squad.json", validation_file="/data/squad.json", num_beams=4,
            label_smoothing_factor=0.1,
        ),
        "sets again": flags("/output/sets-again", model_name_or_path="/output/sets", train_file=None, **moods),
    }  # fmt: skip
    return run_alone(image, train_data, folder, lines)


def result(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "result.json").read_text())
    return found


def test_a_number_per_row_is_learned(runs: Runs, folder: Path) -> None:
    assert runs["numbers"]["code"] == 0, runs["numbers"]
    assert "numbers from 0 to 3 from 'score', text from 'sentence'" in runs["numbers"]["stderr"]
    found = result(folder, "numbers")
    assert (found["metric_name"], found["labels"]) == ("pearson", None)
    assert found["metric_after"] > 0.9
    assert found["metric_before"] < 0.5
    metrics = found["metrics"]
    assert {"eval_pearson", "eval_spearmanr", "eval_mae", "eval_loss"} <= set(metrics)
    assert metrics["eval_loss"] < 0.2
    config = json.loads((folder / "numbers" / "config.json").read_text())
    assert config["problem_type"] == "regression"
    assert len(config.get("id2label", ["one"])) == 1


def test_the_saved_model_predicts_the_same_numbers(runs: Runs, folder: Path) -> None:
    assert runs["numbers again"]["code"] == 0, runs["numbers again"]
    again = result(folder, "again")["metrics"]
    assert again["eval_pearson"] == pytest.approx(result(folder, "numbers")["metric_after"], abs=1e-2)


def test_integers_are_numbers_if_the_user_says_so(runs: Runs, folder: Path) -> None:
    assert runs["integers"]["code"] == 0, runs["integers"]
    assert result(folder, "integers")["metric_name"] == "pearson"


def test_any_number_of_classes_per_row_is_learned(runs: Runs, folder: Path) -> None:
    assert runs["sets"]["code"] == 0, runs["sets"]
    assert "3 labels, any number per row, from 'label'" in runs["sets"]["stderr"]
    found = result(folder, "sets")
    assert (found["metric_name"], found["labels"]) == ("f1", sorted(MOODS))
    assert found["metric_after"] > 0.9
    assert found["metrics"]["eval_accuracy"] > 0.7
    assert found["metrics"]["eval_f1_macro"] > 0.9
    assert runs["sets again"]["code"] == 0, runs["sets again"]
    assert result(folder, "sets-again")["metrics"]["eval_f1"] == pytest.approx(found["metric_after"], abs=1e-6)


def test_labels_that_cannot_be_smoothed_are_refused(runs: Runs) -> None:
    assert runs["smoothed"]["code"] == 2, runs["smoothed"]
    last = runs["smoothed"]["stderr"].splitlines()[-1]
    assert last.startswith("error: --label_smoothing_factor is for one class per row")


def test_flags_that_the_task_does_not_use_are_refused(runs: Runs) -> None:
    assert runs["smoothed answers"]["code"] == 2, runs["smoothed answers"]
    error = runs["smoothed answers"]["stderr"].splitlines()[-1]
    assert error.startswith("error: ")
    beams, smoothing = sorted(error.removeprefix("error: ").split("; "), key=lambda text: "smoothing" in text)
    assert beams.startswith("--num_beams is for text2text-generation, but the task is question-answering: ")
    assert smoothing.startswith("--label_smoothing_factor is for ")
    assert " text-classification" in smoothing
