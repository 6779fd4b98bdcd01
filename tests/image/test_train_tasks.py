"""Language models, pairs and tags inside the image: random models, LoRA on two ranks, packing, resuming."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tests.image.task_rows import BAD, HOMES, lines, pairs, tagged, talks
from tests.image.train_runs import ONE_THREAD, Runs, run_alone, run_together

HERE = Path(__file__).parent
SCRIPTS = ("task_choice", "word_tokens", "chat_rows", "adapted_answers", "adapted_heads")
# A step's rows are the same, whoever computes them; plain gradients, no noise.
PLAIN = {"optim": "sgd", "max_grad_norm": 0, "lr_scheduler_type": "constant", "learning_rate": 0.2}
SFT = {
    **PLAIN,
    "max_seq_length": 64,
    "use_peft": True,
    "lora_r": 4,
    "max_steps": 6,
    "eval_strategy": "no",
    "group_by_length": True,  # the losses are those of one rank only if all ranks use one order
}
# All weights of the decoder, with an optimizer that has a state of its own to keep.
WHOLE = {
    "model_name_or_path": "/output/llama",
    "train_file": "/output/chat.jsonl",
    "max_seq_length": 64,
    "learning_rate": 0.01,
    "max_steps": 5,
    "save_strategy": "steps",
    "save_steps": 3,
}
# An encoder-decoder model, and what it writes.
PAIRS = {
    "model_name_or_path": "/output/t5",
    "train_file": "/output/pairs.jsonl",
    "validation_file": "/output/pairs.jsonl",
    "max_eval_samples": 21,  # the ranks have different numbers of rows
    "source_prefix": "ask: ",
    "max_target_length": 12,
    "predict_with_generate": True,
    "bf16": True,
}
# A model with new weights, which each rank makes a part of.
HEAD = {
    **PLAIN,
    "learning_rate": 0.05,
    "model_name_or_path": "/output/bert",
    "train_file": "/output/tags.jsonl",
    "max_steps": 4,
}


def argv(output: str, **flags: object) -> list[str]:
    words = ["--output_dir", output, "--save_strategy", "no"]
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    return words


@pytest.fixture(scope="module")
def folder(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mounted as /output: models, data, and what the runs write."""
    made = tmp_path_factory.mktemp("tasks")
    made.chmod(0o777)
    text = " ".join(f"where does {name} live? {name} lives in {place}." for name, place in HOMES.items()) * 4
    (made / "chat.jsonl").write_text(lines(talks()))
    (made / "tags.jsonl").write_text(lines(tagged()))
    (made / "pairs.jsonl").write_text(lines(pairs()))
    (made / "text.txt").write_text("\n".join(f"{name} lives in {HOMES[name]}. " * 2 for name in HOMES) * 3)
    (made / "silent.jsonl").write_text(lines([{"messages": [{"role": "user", "content": "hello"}]}]))
    make = ("python", "/tests/tiny_model.py", "/output/bert", text, "/output/llama", "/output/t5")
    done = run(image, made, *make)
    assert done.returncode == 0, done.stderr
    return made


def run(image: str, folder: Path, *command: str) -> Any:
    mounts = ["--volume", f"{folder}:/output", "--volume", f"{HERE}:/tests:ro"]
    return containers.run(image, *command, env=ONE_THREAD, docker_args=mounts, timeout=600)


@pytest.fixture(scope="module")
def two(image: str, folder: Path) -> Runs:
    """Runs of two ranks: SFT with LoRA; whole models with half of each on either rank; and pairs, unsharded."""
    both = {"per_device_train_batch_size": 4, "fsdp": "full_shard"}
    chat = {"model_name_or_path": "/output/llama", "train_file": "/output/chat.jsonl"}
    adapter = {
        **chat,
        **SFT,
        "validation_file": "/output/chat.jsonl",
        "eval_on_start": True,
        "per_device_train_batch_size": 4,
        "merge_adapter": True,
        "gradient_checkpointing": True,  # changes memory, not numbers
    }
    learning = {"learning_rate": 0.02, "num_train_epochs": 40, "per_device_train_batch_size": 4}
    evaluating = {"eval_strategy": "no", "eval_on_start": True, "per_device_eval_batch_size": 4}
    lines = {
        "names": ["python", "/tests/scripts/sharded_names.py"],
        "two": argv("/output/two", **adapter),
        "sharded": argv("/output/sharded", **WHOLE, **both),
        "halves": argv("/output/halves", **HEAD, **both),
        "written": argv("/output/written", **PAIRS, **learning, **evaluating),
    }
    return run_together(image, folder, folder, lines)


@pytest.fixture(scope="module")
def alone(image: str, folder: Path, two: Runs) -> Runs:
    """Runs of one rank, in one process because imports take seconds."""
    assert {name: one["code"] for name, one in two.items()} == dict.fromkeys(two, 0), two
    chat = {"model_name_or_path": "/output/llama", "train_file": "/output/chat.jsonl"}
    whole = {**PLAIN, "max_seq_length": 64, "per_device_train_batch_size": 24, "max_steps": 2}
    saving = {**chat, **SFT, "packing": True, "per_device_train_batch_size": 2, "save_strategy": "steps"}
    unlike = {name: value for name, value in saving.items() if name != "lora_r"}
    validation = {"validation_file": "/output/chat.jsonl", "max_seq_length": 64}
    encoder = {
        "model_name_or_path": "/output/bert",
        "learning_rate": 0.01,
        "eval_strategy": "no",
        "eval_on_start": True,
    }
    texts = {"train_file": "/output/text.txt", "validation_file": "/output/text.txt"}
    hidden = {**encoder, **texts, "task": "fill-mask", "num_train_epochs": 8}
    runs: dict[str, dict[str, object]] = {
        "one": {**chat, **SFT, "per_device_train_batch_size": 8},
        "reloaded": {"model_name_or_path": "/output/two", **validation},
        "merged": {"model_name_or_path": "/output/two/merged", **validation},
        "reread": {
            **PAIRS,
            "model_name_or_path": "/output/written",
            "train_file": "/output/none",
            "do_eval": True,
        },
        "rows": {**chat, **whole},
        "packed": {**chat, **whole, "packing": True},
        "unsharded": {**WHOLE, "per_device_train_batch_size": 8},
        "wholes": {**HEAD, "per_device_train_batch_size": 8},
        "gathered": {
            **WHOLE,
            "per_device_train_batch_size": 8,
            "resume_from_checkpoint": "/output/sharded/checkpoint-3",
        },
        "full": {**saving, "save_steps": 2},
        "resumed": {**saving, "save_steps": 2, "resume_from_checkpoint": "/output/full/checkpoint-4"},
        "unlike": {**unlike, "use_peft": False, "resume_from_checkpoint": "/output/full/checkpoint-4"},
        "guessed": {**hidden, "save_strategy": "steps", "save_steps": 7, "save_total_limit": 3},
        "guessed-again": {**hidden, "resume_from_checkpoint": "/output/guessed/checkpoint-7"},
        "tagged": {**encoder, "train_file": "/output/tags.jsonl", "validation_file": "/output/tags.jsonl"},
        "adapted": {**HEAD, "use_peft": True},
        **{name: {**chat, **changes} for name, (changes, _) in BAD.items()},
    }
    lines = {name: ["python", f"/tests/scripts/{name}.py"] for name in SCRIPTS}
    lines["said"] = ["generate", "/output/written", "--seed=1", "ask: where does mary live?"]
    lines |= {name: argv(f"/output/{name.replace(' ', '-')}", **flags) for name, flags in runs.items()}
    return run_alone(image, folder, folder, lines)


def result(folder: Path, name: str, alone: Runs | None = None) -> dict[str, Any]:
    assert alone is None or alone[name]["code"] == 0, alone[name]["stderr"]
    document: dict[str, Any] = json.loads((folder / name / "result.json").read_text())
    return document


def test_two_ranks_fine_tune_an_adapter_with_the_losses_of_one(two: Runs, alone: Runs, folder: Path) -> None:
    """The loss is a mean over the answers' tokens of all ranks, which have different numbers of them."""
    found, expected = result(folder, "two"), result(folder, "one", alone)
    assert (found["world_size"], found["backend"], found["task"]) == (2, "ccl", "text-generation")
    assert found["losses"] == pytest.approx(expected["losses"], abs=2e-4)
    assert found["train_loss_last"] < 0.9 * found["train_loss_first"]
    assert found["metric_after"] < found["metric_before"]
    assert found["metric_name"] == "perplexity"
    assert found["eval_samples"] == 24
    assert len(set(found["weights_sha256"])) == 1
    assert 0 < found["adapter"]["trainable_parameters"] < 0.5 * found["adapter"]["parameters"]
    assert two["two"]["stderr"].count("done: ") == 1


def test_the_adapter_is_saved_reloaded_and_merged(alone: Runs, folder: Path) -> None:
    expected = result(folder, "two")["metrics"]["eval_loss"]
    assert (folder / "two" / "adapter_model.safetensors").is_file()
    assert not (folder / "two" / "model.safetensors").exists()
    assert not (folder / "two" / "merged" / "adapter_config.json").exists()
    assert result(folder, "reloaded", alone)["metrics"]["eval_loss"] == pytest.approx(expected, abs=1e-4)
    assert result(folder, "merged", alone)["metrics"]["eval_loss"] == pytest.approx(expected, abs=1e-4)


def test_packed_rows_see_themselves_alone_and_compute_little_padding(alone: Runs, folder: Path) -> None:
    rows, packed = result(folder, "rows", alone), result(folder, "packed", alone)
    # All rows in each step: the same loss, and the same gradient, or the second loss would differ.
    assert packed["losses"] == pytest.approx(rows["losses"], abs=2e-4)
    assert abs(rows["losses"][1] - rows["losses"][0]) > 0.1
    assert packed["tokens_useful"] == rows["tokens_useful"]
    assert rows["tokens_computed_per_useful"] == 1 <= packed["tokens_computed_per_useful"] < 1.2
    assert "packing: 24 rows in" in alone["packed"]["stderr"]


def test_a_resumed_adapter_ends_as_one_that_was_never_stopped(alone: Runs, folder: Path) -> None:
    full, resumed = result(folder, "full", alone), result(folder, "resumed", alone)
    assert resumed["losses"] == full["losses"]
    assert resumed["weights_sha256"] == full["weights_sha256"]
    assert alone["unlike"]["code"] == 2
    assert "found an adapter, expected a full model" in alone["unlike"]["stderr"]


def test_sharded_weights_train_like_full_ones_and_save_a_full_checkpoint(alone: Runs, folder: Path) -> None:
    found, expected = result(folder, "sharded"), result(folder, "unsharded", alone)
    assert (found["world_size"], found["backend"], found["fsdp"]) == (2, "ccl", True)
    assert found["losses"] == pytest.approx(expected["losses"], rel=0.01)
    assert found["losses"][-1] < 0.8 * found["losses"][0]
    assert len(set(found["weights_sha256"])) == 1
    size = (folder / "unsharded" / "model.safetensors").stat().st_size
    assert (folder / "sharded" / "model.safetensors").stat().st_size == size
    halves, wholes = result(folder, "halves"), result(folder, "wholes", alone)
    assert halves["fsdp"]
    assert halves["losses"] == pytest.approx(wholes["losses"], rel=0.01)
    # One rank continues with the weights and the optimizer state of two.
    assert result(folder, "gathered", alone)["losses"] == pytest.approx(expected["losses"], rel=0.01)


def test_texts_written_by_two_ranks_are_scored_once_each(alone: Runs, folder: Path) -> None:
    found, reread = result(folder, "written"), result(folder, "reread", alone)
    assert (found["world_size"], found["task"], found["metric_name"]) == (2, "text2text-generation", "exact_match")
    assert found["train_loss_last"] < 0.2 * found["train_loss_first"]
    assert found["metric_before"] == 0.0
    assert found["metric_after"] > 90.0
    assert found["eval_samples"] == 21
    # One rank, with other batches, scores the saved weights alike.
    for name in ("eval_exact_match", "eval_gen_len"):
        assert reread["metrics"][name] == found["metrics"][name]
    assert reread["metrics"]["eval_loss"] == pytest.approx(found["metrics"]["eval_loss"], abs=1e-3)
    assert "ROUGE needs the package rouge_score" in alone["reread"]["stderr"]
    assert alone["said"]["stdout"] == "in rome.\n"


def test_a_chat_template_that_one_rank_lacks_ends_all_ranks_of_a_sharded_run(image: str, folder: Path) -> None:
    flags = shlex.join(argv("/output/lacking", **WHOLE, fsdp="full_shard", ddp_timeout=60))
    lacking = "[ $RANK = 0 ] || set -- --chat_template_path /output/none.jinja"
    command = f'{lacking}; exec entrypoint train {flags} "$@"'
    done = run(image, folder, "launch", "--nproc-per-node", "2", "--", "sh", "-c", command)
    assert done.returncode == 2
    assert "error: rank 1: --chat_template_path '/output/none.jinja' cannot be read" in done.stderr


def test_hidden_words_are_guessed_and_words_are_tagged(alone: Runs, folder: Path) -> None:
    guessed, tags = result(folder, "guessed", alone), result(folder, "tagged", alone)
    assert (guessed["task"], guessed["metric_name"]) == ("fill-mask", "perplexity")
    assert guessed["metric_after"] < 0.7 * guessed["metric_before"]
    assert guessed["losses"][7:] == result(folder, "guessed-again", alone)["losses"][7:]
    assert (tags["task"], tags["metric_name"], tags["labels"]) == (
        "token-classification",
        "f1",
        ["B-LOC", "B-PER", "O"],
    )
    assert tags["metric_after"] == 1.0 > tags["metric_before"]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(alone: Runs, name: str, folder: Path) -> None:
    assert alone[name]["code"] == 2, alone[name]["stderr"]
    said = alone[name]["stderr"].splitlines()
    assert len(said) == 1, said
    assert BAD[name][1] in said[0]
    assert not (folder / name.replace(" ", "-")).exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_rows_and_adapters_of_small_models_are_right(alone: Runs, name: str) -> None:
    """Each script of tests/image/scripts says what it checks."""
    assert alone[name]["code"] == 0, alone[name]["stderr"]


def test_sharded_weights_that_files_name_otherwise_are_checked_and_loaded(two: Runs) -> None:
    assert two["names"]["stdout"].split().count("ok") == 3, two["names"]


def test_an_adapter_and_the_head_of_a_tagger_are_trained(folder: Path, alone: Runs) -> None:
    found = result(folder, "adapted", alone)
    assert found["adapter"]["trainable_parameters"] < found["adapter"]["parameters"]
    assert found["losses"][-1] < found["losses"][0]
