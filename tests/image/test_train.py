"""The trainer inside the image: two ranks on a tiny model, bad input, resuming, and one pretrained model."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import containers

# What each run of one rank printed and returned, and the folder that they wrote to.
Alone = tuple[dict[str, dict[str, Any]], Path]

HERE = Path(__file__).parent
WORDS = {"pos": ("good", "great", "fine", "superb"), "neg": ("bad", "awful", "poor", "dull")}
CONTEXT = "tom lives in paris and mary lives in rome " * 4


def reviews(count: int) -> str:
    """A csv of short reviews that a model can learn, both labels in turn."""
    rows = []
    for number in range(count):
        label = ("pos", "neg")[number % 2]
        rows.append(f"the film number {number} was {WORDS[label][number // 2 % 4]},{label}")
    return "\n".join(["text,label", *rows, ""])


def squad() -> dict[str, Any]:
    """Five questions over contexts of several windows, in SQuAD's release format."""
    questions = [
        {
            "id": str(number),
            "question": f"where lives {name}",
            "answers": [{"text": place, "answer_start": CONTEXT.index(place)}],
        }
        for number, (name, place) in enumerate([("tom", "paris"), ("mary", "rome")] * 2 + [("tom", "paris")])
    ]
    return {"data": [{"title": "places", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}


# The same 22 rows in the same order, whoever computes them: 8 rows a step, plain gradients, no noise.
PARITY = {"optim": "sgd", "max_grad_norm": 0, "lr_scheduler_type": "constant", "eval_strategy": "no"}


@pytest.fixture(scope="module")
def data(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mounted as /data: a tiny model and data files, good and bad."""
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o777)
    text = reviews(8).replace(",", " ") + CONTEXT + " where"
    made = containers.run(
        image, "python", "/tests/tiny_model.py", "/data/tiny", text, docker_args=mounts(folder, read_only=False)
    )
    assert made.returncode == 0, made.stderr
    files = {
        "train.csv": reviews(22),
        "eval.csv": reviews(13),
        "three.csv": reviews(3),
        "one.csv": reviews(1),
        "squad.json": json.dumps(squad()),
        "no-label.csv": "text,topic\na b,c\n",
        "empty.csv": "",
        "broken.json": '[{"text": "a", "label": 1},\n {"text": ]',
        "ragged.csv": "text,label\na,1\na,b,0\n",
        "no-text.csv": "text,label\na,1\n ,0\n",
        "numbers.jsonl": '{"text": 3, "label": 1}\n{"text": "b", "label": 0}\n',
        "other-label.csv": "text,label\na,pos\nb,maybe\n",
        "fractions.csv": "text,label\na,1\nb,0.5\nc,2.5\n",
        "broken.parquet": "PAR1 and no more",
        "wrong-key.yaml": "bf16: true\nmax_seq_lenght: 32\n",
        "wrong-value.yaml": "learning_rate: fast\n",
        "parity.yaml": "".join(f"{key}: {value}\n" for key, value in PARITY.items()),
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "no-weights").mkdir()
    shutil.copy(folder / "tiny" / "config.json", folder / "no-weights")
    shutil.copytree(folder / "tiny", folder / "cut")
    (folder / "cut" / "model.safetensors").write_bytes((folder / "tiny" / "model.safetensors").read_bytes()[:-9])
    shutil.copytree(folder / "tiny", folder / "closed")
    (folder / "closed" / "model.safetensors").chmod(0o600)
    (folder / "closed.csv").write_text(reviews(4))
    (folder / "closed.csv").chmod(0o600)
    shutil.copytree(folder / "tiny", folder / "no-tokens", ignore=shutil.ignore_patterns("tok*", "vocab*"))
    return folder


def mounts(data: Path, output: Path | None = None, read_only: bool = True) -> list[str]:
    volumes = [f"{data}:/data{':ro' if read_only else ''}", f"{HERE}:/tests:ro"]
    volumes += [f"{output}:/output"] if output else []
    return [word for volume in volumes for word in ("--volume", volume)]


def line(output: str, **changes: object) -> list[str]:
    """The flags of a short run, with changes; None takes a flag out, True makes it a switch."""
    flags: dict[str, object] = {
        "model_name_or_path": "/data/tiny",
        "train_file": "/data/train.csv",
        "validation_file": "/data/eval.csv",
        "output_dir": output,
        "max_seq_length": 32,
        "num_train_epochs": 2,
        "learning_rate": 0.05,
        "save_strategy": "no",
        **changes,
    }
    argv = []
    for name, value in flags.items():
        if value is not None:
            argv += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return argv


# Two epochs have 12 steps: the run ends in the middle of one.
STEPS = 11
RESUMED = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 9,
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

BAD: dict[str, tuple[dict[str, object], str]] = {
    "missing file": ({"train_file": "/data/none.csv"}, "found nothing there"),
    "file of another user": ({"train_file": "/data/closed.csv"}, "cannot be read by user 1000"),
    "no label column": ({"train_file": "/data/no-label.csv"}, "expected 'label'"),
    "empty file": ({"train_file": "/data/empty.csv"}, "is empty"),
    "broken json": ({"train_file": "/data/broken.json"}, "line 2 column 11: broken JSON"),
    "ragged csv": ({"validation_file": "/data/ragged.csv"}, "line 3: found 3 columns, expected 2"),
    "broken parquet": ({"train_file": "/data/broken.parquet"}, "broken parquet"),
    "row without text": ({"train_file": "/data/no-text.csv"}, "first in row 2"),
    "wrong type": ({"train_file": "/data/numbers.jsonl"}, "holds int 3, expected text"),
    "unknown label": ({"validation_file": "/data/other-label.csv"}, "'maybe'"),
    "numbers, not classes": ({"train_file": "/data/fractions.csv"}, "row 2: column 'label' holds the number 0.5"),
    "evaluation without data": (
        {"validation_file": None, "eval_strategy": "steps"},
        "--eval_strategy steps needs",
    ),
    "training that is not wanted": ({"do_train": "false", "validation_file": None}, "nothing to do: write"),
    "one label": ({"train_file": "/data/one.csv"}, "expected two or more"),
    "missing model": ({"model_name_or_path": "/data/none"}, "does not exist"),
    "model without weights": ({"model_name_or_path": "/data/no-weights"}, "has no weights"),
    "weights of another user": ({"model_name_or_path": "/data/closed"}, "cannot be read by user 1000"),
    "half of the weights": ({"model_name_or_path": "/data/cut"}, "cannot be loaded"),
    "no vocabulary": ({"model_name_or_path": "/data/no-tokens"}, "has no vocabulary"),
    "too long inputs": ({"max_seq_length": 65}, "more than the 64 positions"),
    "unknown flag": ({"max_seq_lenght": 3}, "did you mean --max_seq_length?"),
    "bad value": ({"learning_rate": "fast"}, "invalid float value: 'fast'"),
    "flag of a GPU": ({"deepspeed": "x.json"}, "no meaning on CPU ranks"),
    "missing checkpoint": ({"resume_from_checkpoint": "/data/none"}, "there is no such folder"),
    "no stride left": (
        {"train_file": "/data/squad.json", "validation_file": "/data/squad.json", "doc_stride": 30},
        "write a smaller --doc_stride",
    ),
}


@pytest.fixture(scope="module")
def alone(image: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Runs of one rank, in one process because imports take seconds, and the folder that they wrote to."""
    output = tmp_path_factory.mktemp("alone")
    output.chmod(0o777)
    lines = {name: line(f"/output/{name}", **changes) for name, (changes, _) in BAD.items()}
    lines["wrong key"] = ["/data/wrong-key.yaml"]
    lines["wrong value"] = ["/data/wrong-value.yaml", *line("/output/never")]
    lines["print"] = ["/data/parity.yaml", "--print-config", "--seed", "3", "--max_grad_norm", "1"]
    lines["parity"] = ["/data/parity.yaml", *line("/output/parity", per_device_train_batch_size=8)]
    lines["watched"] = line("/output/watched", eval_strategy="steps", eval_steps=2)
    lines["full"] = line("/output/full", **RESUMED)
    lines["again"] = line("/output/full", **RESUMED)
    lines["finished"] = line("/output/full", resume_from_checkpoint="true", **RESUMED)
    lines["guide"] = line("/output/guide", **OF_GUIDES)
    (output / "lines.json").write_text(json.dumps(list(lines.values())))
    done = containers.run(
        image, "python", "/tests/many_runs.py", "/output/lines.json", docker_args=mounts(data, output), timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, json.loads(done.stdout), strict=True)), output


def result(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return document


@pytest.fixture
def two_ranks(image: str, data: Path, output_folder: Path) -> Any:
    def run(**changes: object) -> subprocess.CompletedProcess[str]:
        argv = ["launch", "--nproc-per-node", "2", "--", "train", *line("/output/run", **changes)]
        return containers.run(image, *argv, docker_args=mounts(data, output_folder), timeout=240)

    return run


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2_and_nothing_is_written(alone: Alone, name: str) -> None:
    runs, output = alone
    assert runs[name]["code"] == 2
    lines = runs[name]["stderr"].splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert BAD[name][1] in lines[0]
    assert not (output / name).exists()


def test_a_config_files_errors_name_its_line_and_what_is_printed_is_a_config_file(alone: Alone) -> None:
    runs, _ = alone
    said = "error: config file '/data/wrong-key.yaml' line 2: unknown key 'max_seq_lenght': did you mean"
    assert (runs["wrong key"]["code"], runs["wrong value"]["code"]) == (2, 2)
    assert runs["wrong key"]["stderr"].splitlines() == [f"{said} max_seq_length?"]
    assert "line 1: argument --learning_rate" in runs["wrong value"]["stderr"]
    assert runs["print"]["code"] == 0
    printed = runs["print"]["stderr"].splitlines()
    expected = {
        "optim: sgd",
        "max_grad_norm: 1.0",
        "lr_scheduler_type: constant",
        "eval_strategy: 'no'",
        "seed: 3",
    }
    assert {text for text in printed if text and not text.startswith("#")} == expected
    assert "# num_train_epochs: 3.0" in printed


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


def test_an_evaluation_every_few_steps_does_not_take_the_place_of_training(alone: Alone) -> None:
    runs, output = alone
    assert runs["watched"]["code"] == 0
    assert result(output / "watched")["steps"] == 2 * math.ceil(22 / 8)
    assert [text.split()[3] for text in runs["watched"]["stderr"].splitlines() if "evaluation at" in text] == [
        "2",
        "4",
        "6",
    ]


def test_two_ranks_share_the_rows_and_agree_with_one_rank_in_every_step(
    alone: Alone, two_ranks: Any, output_folder: Path
) -> None:
    """Fails where ranks do not find each other, where the loss is multiplied, and where gradients are."""
    expected = result(alone[1] / "parity")
    changes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "report_to": "tensorboard"}
    done = two_ranks(**changes, **PARITY)
    assert done.returncode == 0, done.stderr
    found = result(output_folder / "run")
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
    assert list((output_folder / "run" / "runs").rglob("events.out.tfevents.*"))
    assert done.stderr.count("done: ") == 1


def test_fewer_rows_than_ranks_are_trained_on_and_evaluated_exactly(two_ranks: Any, output_folder: Path) -> None:
    done = two_ranks(
        train_file="/data/three.csv",
        validation_file="/data/one.csv",
        bf16=True,
        eval_on_start=True,
        save_strategy="epoch",
        no_cuda=True,
        ddp_backend="gloo",
    )
    assert done.returncode == 0, done.stderr
    found = result(output_folder / "run")
    assert found["backend"] == "gloo"
    assert found["eval_samples"] == 1
    assert found["steps"] == 2
    assert found["metric_name"] == "accuracy"
    assert found["metric_before"] in (0.0, 1.0)
    assert found["bf16"] is True
    assert (output_folder / "run" / "checkpoint-2" / "rng_state_1.pth").is_file()


def test_questions_over_long_contexts_are_answered_by_two_ranks(two_ranks: Any, output_folder: Path) -> None:
    done = two_ranks(
        train_file="/data/squad.json",
        validation_file="/data/squad.json",
        doc_stride=8,
        group_by_length=True,  # evaluation must not be grouped: an answer is found by its window's place
        ddp_comm_hook="bf16",
        learning_rate=0.01,
        num_train_epochs=20,
        per_device_train_batch_size=4,
        eval_strategy="no",
        eval_on_start=True,
    )
    assert done.returncode == 0, done.stderr
    found = result(output_folder / "run")
    assert found["task"] == "question-answering"
    assert found["eval_samples"] == 5
    assert found["metric_name"] == "f1"
    assert set(found["metrics"]) >= {"eval_f1", "eval_exact_match", "eval_loss"}
    assert found["metric_after"] > found["metric_before"]
    assert found["train_loss_last"] < found["train_loss_first"]


def test_an_unknown_flag_on_two_ranks_is_said_once(two_ranks: Any, output_folder: Path) -> None:
    done = two_ranks(bf61=True)
    assert done.returncode == 2
    assert done.stderr.count("unknown flag --bf61: did you mean --bf16?") == 1
    assert "Traceback" not in done.stderr
    assert not list(output_folder.iterdir())


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_never_stopped(
    alone: Alone, image: str, data: Path, output_folder: Path
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
    done = containers.run(image, "train", *argv, docker_args=mounts(data, output_folder))
    assert done.returncode == 0, done.stderr
    assert f"{middle} is passed over: optimizer.pt is missing or broken" in done.stderr
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


def test_an_output_folder_that_the_user_may_not_write_to_is_refused(
    run_in_image: containers.RunInImage, data: Path, output_folder: Path
) -> None:
    (output_folder / "run").mkdir()
    (output_folder / "run").chmod(0o555)
    done = run_in_image("train", *line("/output/run"), docker_args=mounts(data, output_folder))
    assert done.returncode == 2
    errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1
    assert "'/output/run' cannot be written to by user 1000 (Permission denied)" in errors[0]
    assert "Traceback" not in done.stderr


def test_bf16_on_a_cpu_that_emulates_it_is_warned_about(
    run_in_image: containers.RunInImage, data: Path, tmp_path: Path
) -> None:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    (tmp_path / "cpuinfo").write_text(cpuinfo.replace("avx512_bf16", "").replace("amx_bf16", ""))
    done = run_in_image(
        "train",
        *line("/tmp/run", train_file="/data/none.csv", bf16=True),
        docker_args=[*mounts(data), "--volume", f"{tmp_path / 'cpuinfo'}:/proc/cpuinfo:ro"],
    )
    assert "warning: --bf16: this CPU has no bf16 instructions" in done.stderr
    assert done.returncode == 2  # the missing file keeps this short


def test_bf16_is_warned_about_where_the_instructions_are_hidden(
    run_in_image: containers.RunInImage, data: Path
) -> None:
    flags = line("/tmp/run", train_file="/data/none.csv", bf16=True)
    done = run_in_image("train", *flags, docker_args=mounts(data), env={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})
    assert "warning: --bf16: this CPU has no bf16 instructions" in done.stderr
    assert "or ONEDNN_MAX_CPU_ISA hides them" in done.stderr
    assert done.returncode == 2


def test_a_pretrained_model_learns_in_bf16(
    run_in_image: containers.RunInImage, data: Path, model_folder: Path, output_folder: Path
) -> None:
    done = run_in_image(
        "train",
        *line(
            "/output/run",
            model_name_or_path="/model",
            bf16=True,
            learning_rate=2e-4,
            num_train_epochs=4,
            per_device_train_batch_size=4,
            eval_strategy="no",
            eval_on_start=True,
        ),
        docker_args=[*mounts(data, output_folder), "--volume", f"{model_folder}:/model:ro"],
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = result(output_folder / "run")
    assert found["train_loss_last"] < found["train_loss_first"]
    assert found["metric_after"] >= 0.9 > found["metric_before"]
    assert "new weights, not pretrained: classifier.bias, classifier.weight" in done.stderr
    assert (output_folder / "run" / "model.safetensors").stat().st_mode & 0o777 == 0o644
