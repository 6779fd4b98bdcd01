"""Runs that start from what an earlier run wrote: the order of its labels, its head, and its files."""

import json
import shutil
from pathlib import Path

import pytest

from tests.image.train_runs import Runs, line, result, reviews, run_alone

OPPOSITE = {"pos": "neg", "neg": "pos"}
RENAMED = {"pos": "yes", "neg": "no"}


def labelled(names: dict[str, str]) -> str:
    head, *rows = reviews(22).splitlines()
    return "\n".join(
        [head, *(f"{text},{names[label]}" for text, _, label in (row.rpartition(",") for row in rows))]
    )


def label(folder: Path, *names: str) -> None:
    """Gives a model's head these labels."""
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(number): name for number, name in enumerate(names)}
    config["label2id"] = {name: number for number, name in enumerate(names)}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))


def copied(folder: Path, name: str) -> Path:
    shutil.copytree(folder / "first", folder / name)
    (folder / name).chmod(0o777)
    return folder / name


def labels(folder: Path, name: str) -> list[str]:
    return list(json.loads((folder / name / "config.json").read_text())["id2label"].values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("again")
    made.chmod(0o777)
    (made / "opposite.csv").write_text(labelled(OPPOSITE))
    (made / "renamed.csv").write_text(labelled(RENAMED))
    (made / "whole.csv").write_text(
        "text,label\n" + "".join(f"{'good ' * (n % 4)}end,{n % 4}\n" for n in range(16))
    )
    return made


@pytest.fixture(scope="module")
def runs(image: str, train_data: Path, folder: Path) -> Runs:
    step = {"max_steps": 1, "num_train_epochs": None, "learning_rate": 1e-9, "eval_on_start": True}
    opposite = {**step, "train_file": "/output/opposite.csv", "validation_file": "/output/opposite.csv"}
    renamed = {**step, "train_file": "/output/renamed.csv", "validation_file": "/output/renamed.csv"}
    whole = {"train_file": "/output/whole.csv", "validation_file": "/output/whole.csv"}
    adapter = {"use_peft": True, "num_train_epochs": 1}
    first = {
        "first": line(
            "/output/first", num_train_epochs=30, learning_rate=0.003, validation_file="/data/train.csv",
        ),
        "numbers": line("/output/numbers", **whole, do_regression=True),
        "four": line("/output/four", **whole),
        "stale adapter": line("/output/full", **adapter, merge_adapter=True),
        "stale weights": line("/output/adapted"),
    }  # fmt: skip
    made = run_alone(image, train_data, folder, first)
    assert {name: run["code"] for name, run in made.items()} == dict.fromkeys(made, 0), made
    label(copied(folder, "reversed"), "pos", "neg")  # its class 0 is the texts with bad words
    label(folder / "four", *(f"LABEL_{number}" for number in range(4)))
    lines = {
        "further": line(
            "/output/further", **{**opposite, "max_steps": 2}, model_name_or_path="/output/reversed",
            save_strategy="steps", save_steps=1,
        ),
        "renamed": line("/output/renamed", **renamed, model_name_or_path="/output/first", seed=7),
        "adapter": line(
            "/output/adapter", **{**opposite, **adapter, "learning_rate": 1e-3},
            model_name_or_path="/output/reversed",
        ),
        "adapter further": line("/output/adapter-further", **opposite, model_name_or_path="/output/adapter"),
        "adapter renamed": line("/output/x", **renamed, model_name_or_path="/output/adapter"),
        "resumed": line(
            "/output/resumed", **{**opposite, "max_steps": 3}, model_name_or_path="/output/first",
            resume_from_checkpoint="/output/further/checkpoint-1",
        ),
        "numbers": line(
            "/output/numbers-again", train_file=None, validation_file="/output/whole.csv",
            model_name_or_path="/output/numbers",
        ),
        "four": line("/output/x", train_file=None, model_name_or_path="/output/four"),
        "stale adapter": line("/output/full", overwrite_output_dir=True),
        "stale weights": line("/output/adapted", **adapter, overwrite_output_dir=True),
    }  # fmt: skip
    return {**made, **run_alone(image, train_data, folder, lines)}


def test_a_classifier_keeps_the_order_of_its_labels(runs: Runs, folder: Path) -> None:
    assert runs["further"]["code"] == 0, runs["further"]
    assert labels(folder, "further") == result(folder / "further")["labels"] == ["pos", "neg"]
    assert result(folder / "first")["metric_after"] == 1.0
    assert result(folder / "further")["metric_before"] == 1.0
    assert result(folder / "further")["train_loss_first"] < 0.1


def test_other_labels_get_a_new_head(runs: Runs, folder: Path) -> None:
    found = runs["renamed"]
    assert found["code"] == 0, found
    assert (
        "the model's labels are 'neg', 'pos', the data's are 'no', 'yes': the model gets a new head"
        in (found["stderr"])
    )
    assert "new weights, not pretrained: classifier.bias, classifier.weight" in found["stderr"]
    assert labels(folder, "renamed") == ["no", "yes"]
    assert result(folder / "renamed")["train_loss_first"] > 0.3


def test_an_adapter_keeps_the_order_of_its_labels(runs: Runs, folder: Path) -> None:
    assert runs["adapter"]["code"] == 0, runs["adapter"]
    assert result(folder / "adapter")["metric_before"] == 1.0
    assert runs["adapter further"]["code"] == 0, runs["adapter further"]
    assert labels(folder, "adapter") == labels(folder, "adapter-further") == ["pos", "neg"]
    assert result(folder / "adapter-further")["metric_before"] == result(folder / "adapter")["metric_after"]


def test_an_adapter_is_not_trained_with_other_labels(runs: Runs) -> None:
    assert runs["adapter renamed"]["code"] == 2, runs["adapter renamed"]
    assert "train a new adapter, with the base model as" in runs["adapter renamed"]["stderr"].splitlines()[-1]


def test_a_checkpoint_keeps_the_order_of_its_labels(runs: Runs, folder: Path) -> None:
    """An earlier version may have written it with the data's order."""
    assert runs["resumed"]["code"] == 0, runs["resumed"]
    assert labels(folder, "resumed") == ["pos", "neg"]
    assert result(folder / "resumed")["metric_after"] == 1.0


def test_a_model_of_numbers_is_evaluated_on_integers(runs: Runs, folder: Path) -> None:
    assert runs["numbers"]["code"] == 0, runs["numbers"]
    again = result(folder / "numbers-again")
    assert again["metric_name"] == "pearson"
    assert again["metric_after"] == pytest.approx(result(folder / "numbers")["metric_after"], abs=1e-4)


def test_a_head_of_another_size_is_not_evaluated(runs: Runs) -> None:
    assert runs["four"]["code"] == 2, runs["four"]
    last = runs["four"]["stderr"].splitlines()[-1]
    assert last.startswith("error: model '/output/four' has a head for another number of labels than the data, ")


def test_full_weights_replace_the_adapter_of_an_earlier_run(runs: Runs, folder: Path) -> None:
    assert runs["stale adapter"]["code"] == 0, runs["stale adapter"]
    names = {path.name for path in (folder / "full").iterdir()}
    assert {"model.safetensors", "config.json"} <= names
    assert not {"adapter_config.json", "adapter_model.safetensors", "merged"} & names


def test_an_adapter_replaces_the_full_weights_of_an_earlier_run(runs: Runs, folder: Path) -> None:
    assert runs["stale weights"]["code"] == 0, runs["stale weights"]
    names = {path.name for path in (folder / "adapted").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "config.json"} <= names
    assert "model.safetensors" not in names
