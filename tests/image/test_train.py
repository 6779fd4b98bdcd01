"""The trainer inside the image: one and two ranks on a tiny model, resuming, and one pretrained model."""

import json
import math
import shutil
from pathlib import Path

import pytest

from tests import containers
from tests.image.train_runs import ONE_THREAD, PARITY, Runs, line, mounts, result, run_alone, run_together, scored

# The runs of one rank, and the folder that they wrote to.
Alone = tuple[Runs, Path]

# Two epochs have 12 steps: the run ends in the middle of one.
STEPS = 11
RESUMED = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 9,
    "eval_strategy": "steps",
    "eval_steps": STEPS,
}

# Flags of old guides, each with an equivalent, and the notes that they get.
OF_GUIDES: dict[str, object] = {
    "no_cuda": True,
    "ddp_backend": "ccl",
    "use_ipex": True,
    "overwrite_output_dir": "True",
    "evaluation_strategy": "no",
    "warmup_ratio": 0.5,
    "logging_dir": "/output/guide/logs",
    "report_to": "tensorboard",
    "fp16": True,
    "auto_find_batch_size": True,
    "local_rank": 0,
}
NOTES = {
    "no_cuda": "has become --use_cpu",
    "ddp_backend": "has become --backend",
    "use_ipex": "is dropped",
    "evaluation_strategy": "has become --eval_strategy",
    "warmup_ratio": "has become --warmup_steps",
    "logging_dir": "has become the variable TENSORBOARD_LOGGING_DIR",
    "fp16": "has become --bf16",
    "auto_find_batch_size": "is dropped",
    "local_rank": "is dropped",
}


# A number for each row.
NUMBERS: dict[str, object] = {
    **PARITY,
    "learning_rate": 0.003,
    "num_train_epochs": 1,
    "train_file": "/output/scores.csv",
    "label_column_name": "score",
    "validation_file": None,
}


@pytest.fixture(scope="module")
def alone(image: str, train_data: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Runs of one rank, and the folder that they wrote to."""
    output = tmp_path_factory.mktemp("alone")
    (output / "scores.csv").write_text(scored(56))
    shutil.copytree(train_data / "tiny", train_data / "three-labels")
    config = train_data / "three-labels" / "config.json"
    names = {number: f"LABEL_{number}" for number in range(3)}
    config.write_text(json.dumps({**json.loads(config.read_text()), "id2label": names}))
    (train_data / "two-labels.csv").write_text("text,label\ngood,0\nbad,1\n")
    shutil.copytree(model_folder, output / "pretrained")
    fewer = {"max_eval_samples": 4}
    evaluated = {"train_file": None, "do_eval": True, **fewer}
    lines = {
        "parity": ["/data/parity.yaml", *line("/output/parity", per_device_train_batch_size=8)],
        "watched": line("/output/watched", eval_strategy="steps", eval_steps=2),
        "full": line("/output/full", **RESUMED),
        "again": line("/output/full", **RESUMED),
        "finished": line("/output/full", resume_from_checkpoint="true", **RESUMED, **fewer),
        "guide": line("/output/guide", **OF_GUIDES),
        "evaluated": line(
            "/output/evaluated", resume_from_checkpoint=f"/output/full/checkpoint-{STEPS}", **evaluated
        ),
        "wider": line(
            "/output/wider", resume_from_checkpoint="/output/full/checkpoint-8", per_device_train_batch_size=8
        ),
        "weights only": [
            "CPU_TRAIN_STACK_STOP=/data/eval.csv",  # asks to stop at once
            *line("/output/weights-only", save_strategy="steps", save_steps=1, save_only_model=True),
            "--max_steps=2",
        ],
        "labels": line(
            "/output/labels",
            **{**evaluated, "model_name_or_path": "/data/three-labels", "validation_file": "/data/two-labels.csv"},
        ),
        "numbers": line("/output/numbers", **NUMBERS, per_device_train_batch_size=8),
        "pretrained": line(
            "/output/bf16",
            model_name_or_path="/output/pretrained",
            bf16=True,
            learning_rate=2e-4,
            num_train_epochs=4,
            per_device_train_batch_size=4,
            eval_strategy="no",
            eval_on_start=True,
        ),
    }
    return run_alone(image, train_data, output, lines), output


@pytest.fixture(scope="module")
def together(image: str, train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Runs of two ranks, and the folder that they wrote to."""
    output = tmp_path_factory.mktemp("together")
    (output / "scores.csv").write_text(scored(56))
    parity = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "report_to": "tensorboard"}
    few: dict[str, object] = {"train_file": "/data/three.csv", "validation_file": "/data/one.csv"}
    questions: dict[str, object] = {
        "train_file": "/data/squad.json",
        "validation_file": "/data/squad.json",
        "doc_stride": 8,
        "group_by_length": True,  # evaluation must not be grouped: an answer is found by its window's place
        "ddp_comm_hook": "bf16",
        "learning_rate": 0.01,
        "num_train_epochs": 20,
        "per_device_train_batch_size": 4,
        "eval_strategy": "no",
        "eval_on_start": True,
    }
    lines = {
        "parity": line("/output/parity", **parity, **PARITY),
        "few": line("/output/few", **few, bf16=True, eval_on_start=True, save_strategy="epoch"),
        "questions": line("/output/questions", **questions),
        "numbers": line("/output/numbers", **NUMBERS, per_device_train_batch_size=4),
    }
    runs = run_together(image, train_data, output, lines)
    assert {name: one["code"] for name, one in runs.items()} == dict.fromkeys(lines, 0), runs
    return runs, output


def test_flags_of_old_guides_mean_what_they_meant_with_one_note_each(alone: Alone) -> None:
    runs, output = alone
    assert runs["guide"]["code"] == 0, runs["guide"]["stderr"]
    said = [text for text in runs["guide"]["stderr"].splitlines() if text.startswith("note: --")]
    assert len(said) == len(NOTES)
    for name, now in NOTES.items():
        assert sum(f"note: --{name} {now}: " in text for text in said) == 1, name
    found = result(output / "guide")
    assert (found["bf16"], found["steps"], found["config"]["warmup_steps"]) == (True, 6, 0.5)
    assert found["config"]["backend"] == "ccl"
    assert list((output / "guide" / "logs").glob("events.out.tfevents.*"))


def test_an_evaluation_every_few_steps_does_not_replace_training(alone: Alone) -> None:
    runs, output = alone
    assert runs["watched"]["code"] == 0
    assert result(output / "watched")["steps"] == 2 * math.ceil(22 / 8)
    assert [text.split()[3] for text in runs["watched"]["stderr"].splitlines() if "evaluation at" in text] == [
        "2",
        "4",
        "6",
    ]


def test_two_ranks_share_the_rows_and_agree_with_one_rank_in_every_step(alone: Alone, together: Alone) -> None:
    """Fails where ranks do not find each other, where the loss is multiplied, and where gradients are."""
    expected = result(alone[1] / "parity")
    runs, output = together
    found = result(output / "parity")
    assert (found["world_size"], found["nodes"], found["backend"]) == (2, 1, "ccl")
    assert found["pin"] is not None
    # The last batch of an epoch is filled up with rows from its beginning: compare the steps before it.
    assert found["steps"] == expected["steps"] == 2 * math.ceil(22 / 8)
    assert found["losses"][:2] == pytest.approx(expected["losses"][:2], abs=2e-5)
    assert 0.3 < found["losses"][0] < 1.5  # near ln 2: not multiplied by ranks and accumulation steps
    assert abs(expected["losses"][1] - expected["losses"][0]) > 1e-3  # so that gradients are compared too
    assert found["metrics"]["eval_loss"] == pytest.approx(expected["metrics"]["eval_loss"], abs=0.05)
    assert found["eval_samples"] == expected["eval_samples"] == 13
    assert len(found["weights_sha256"]) == 2
    assert len(set(found["weights_sha256"])) == 1
    assert found["train_samples_per_second"] > 0
    assert found["labels"] == ["neg", "pos"]
    assert list((output / "parity" / "runs").rglob("events.out.tfevents.*"))
    assert runs["parity"]["stderr"].count("done: ") == 1


def test_fewer_rows_than_ranks_are_trained_on_and_evaluated_exactly(together: Alone) -> None:
    folder = together[1] / "few"
    found = result(folder)
    assert found["eval_samples"] == 1
    assert found["steps"] == 2
    assert found["metric_name"] == "accuracy"
    assert found["metric_before"] in (0.0, 1.0)
    assert found["bf16"] is True
    assert (folder / "checkpoint-2" / "rng_state_1.pth").is_file()


def test_questions_over_long_contexts_are_answered_by_two_ranks(together: Alone) -> None:
    found = result(together[1] / "questions")
    assert found["task"] == "question-answering"
    assert found["eval_samples"] == 5
    assert found["metric_name"] == "f1"
    assert set(found["metrics"]) >= {"eval_f1", "eval_exact_match", "eval_loss"}
    assert found["metric_after"] > found["metric_before"]
    assert found["train_loss_last"] < found["train_loss_first"]


def test_numbers_have_the_same_losses_on_two_ranks(alone: Alone, together: Alone) -> None:
    assert alone[0]["numbers"]["code"] == 0, alone[0]["numbers"]["stderr"]
    one, two = (result(output / "numbers")["losses"] for _, output in (alone, together))
    assert two == pytest.approx(one, abs=1e-5)


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_never_stopped(
    alone: Alone, image: str, train_data: Path, output_folder: Path
) -> None:
    full = alone[1] / "full"
    expected = result(full)
    last, middle, earlier = f"checkpoint-{STEPS}", "checkpoint-10", "checkpoint-8"
    for name in (middle, earlier):
        shutil.copytree(full / name, output_folder / "run" / name)
    # As if the process had been killed in the middle of writing.
    optimizer = output_folder / "run" / middle / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    for path in (output_folder / "run", *(output_folder / "run").rglob("*")):
        path.chmod(0o777)
    argv = line("/output/run", resume_from_checkpoint="true", **RESUMED)
    # As many threads as in the full run: each of them adds up a part of LayerNorm's gradient.
    done = containers.run(image, "train", *argv, env=ONE_THREAD, docker_args=mounts(train_data, output_folder))
    assert done.returncode == 0, done.stderr
    assert f"{middle} is skipped: optimizer.pt is missing or broken" in done.stderr
    found = result(output_folder / "run")
    assert found["resumed_from"].endswith(earlier)
    assert found["steps"] == expected["steps"] == STEPS
    assert found["losses"] == expected["losses"]
    assert found["weights_sha256"] == expected["weights_sha256"]
    assert (output_folder / "run" / last).is_dir()


def test_a_finished_run_is_neither_replaced_nor_trained_further(alone: Alone) -> None:
    runs, output = alone
    assert runs["again"]["code"] == 2
    assert "holds an earlier run" in runs["again"]["stderr"]
    assert runs["finished"]["code"] == 0
    found = result(output / "full")
    assert len(found["losses"]) == found["steps"] == STEPS
    assert found["resumed_from"].endswith(f"checkpoint-{STEPS}")
    assert found["eval_samples"] == 4
    assert found["train_samples_per_second"] > 0, "a measurement of the training that had ended"
    assert "no step is left to train" in runs["finished"]["stderr"]


def test_a_run_whose_checkpoints_cannot_be_resumed_does_not_stop_at_one(alone: Alone) -> None:
    runs, output = alone
    assert runs["weights only"]["code"] == 0, runs["weights only"]["stderr"]
    assert result(output / "weights-only")["steps"] == 2


def test_an_evaluation_alone_is_of_the_checkpoint(alone: Alone) -> None:
    runs, output = alone
    assert runs["evaluated"]["code"] == 0, runs["evaluated"]["stderr"]
    full, evaluated = (result(output / name)["metrics"] for name in ("full", "evaluated"))
    assert evaluated["eval_loss"] == full["eval_loss"]


def test_an_evaluation_alone_keeps_the_labels_of_the_model(alone: Alone) -> None:
    runs, output = alone
    assert runs["labels"]["code"] == 0, runs["labels"]["stderr"]
    assert result(output / "labels")["labels"] == ["0", "1", "2"]


def test_a_resumed_run_says_that_it_ends_after_other_epochs(alone: Alone) -> None:
    """An epoch had six steps, and has three now. The checkpoint is of step 8, the run has six steps."""
    runs, output = alone
    assert runs["wider"]["code"] == 0, runs["wider"]["stderr"]
    said = (
        "warning: the checkpoint's run had 11 steps, and this run has 6, because ranks, batch size or rows differ"
    )
    assert f"{said}: it ends after 1.33 epochs in all instead of 2" in runs["wider"]["stderr"]
    assert result(output / "wider")["steps"] == 8
    assert "epochs in all" not in runs["finished"]["stderr"]


def test_a_pretrained_model_learns_in_bf16(alone: Alone) -> None:
    runs, output = alone
    assert runs["pretrained"]["code"] == 0, runs["pretrained"]["stderr"]
    found = result(output / "bf16")
    assert found["train_loss_last"] < found["train_loss_first"]
    assert found["metric_after"] >= 0.9 > found["metric_before"]
    assert "new weights, not pretrained: classifier.bias, classifier.weight" in runs["pretrained"]["stderr"]
    assert (output / "bf16" / "model.safetensors").stat().st_mode & 0o777 == 0o644
