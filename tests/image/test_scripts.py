"""`run` with unmodified scripts in users' style, without a network, on libraries that broke them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import containers
from tests.image.train_runs import CONTEXT, reviews

HERE = Path(__file__).parent
FILES = "--model_name_or_path /data/tiny --train_file /data/train.csv --validation_file /data/eval.csv"
FLAGS = "--num_train_epochs 1 --learning_rate 5e-3 --logging_steps 1 --max_grad_norm 0"
# The words of the guides, which transformers 5.23 and accelerate 1.15 refuse one and all.
OLD = "--no_cuda --ddp_backend ccl --use_ipex --xpu_backend ccl --overwrite_output_dir --evaluation_strategy no"
TWO = "entrypoint launch --nproc-per-node 2 -- run"
# As one of several ranks: accelerate names its device cpu:0.
RANK = (
    "run",
    "--quiet",
    "--no-adapt",
    "single-rank",
)
JOB = f"""
{TWO} /scripts/classify.py {FILES} {FLAGS} {OLD} --output_dir /data/two --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 2 2>/data/two.log || exit 1
entrypoint run --backend gloo /scripts/classify.py /data/one.json 2>/data/one.log || exit 2
{TWO} /scripts/loop.py /data/tiny /data/train.csv /data/odd.csv /data/loop.json 2>/data/loop.log || exit 3
"""
# Hugging Face's own examples, where somebody has put them in a folder.
EXAMPLES = "CPU_TRAIN_STACK_HF_EXAMPLES"
TRAINERS = "--do_train --do_eval --no_cuda --ddp_backend ccl"
TEXTS = "--model_name_or_path /data/tiny --train_file /data/text.txt --validation_file /data/text.txt"
PLACES = "--model_name_or_path /data/tiny --train_file /data/places.json --validation_file /data/places.json"
EXAMPLE_FLAGS = {
    "run_glue.py": f"{FILES} {TRAINERS} --max_seq_length 64",
    "run_qa.py": f"{PLACES} {TRAINERS} --max_seq_length 64 --doc_stride 16",
    "run_clm.py": f"{TEXTS} {TRAINERS} --block_size 16",
    "run_mlm.py": f"{TEXTS} {TRAINERS} --max_seq_length 16 --line_by_line",
    "run_glue_no_trainer.py": f"{FILES} --max_length 64",
    "run_qa_no_trainer.py": f"{PLACES} --max_seq_length 64 --doc_stride 16",
}
# The same job in the words of a configuration file, on one rank.
CONFIGURATION = {
    "model_name_or_path": "/data/tiny",
    "train_file": "/data/train.csv",
    "validation_file": "/data/eval.csv",
    "output_dir": "/data/one",
    "per_device_train_batch_size": 8,
    "num_train_epochs": 1,
    "learning_rate": 5e-3,
    "logging_steps": 1,
    "max_grad_norm": 0,
    "no_cuda": True,
    "evaluation_strategy": "no",
}


@pytest.fixture(scope="module")
def folder(image: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data, and the files and logs of three jobs: Trainer on two ranks, Trainer on one, and a loop."""
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o777)
    (folder / "train.csv").write_text(numbered(24))
    (folder / "eval.csv").write_text(numbered(16))
    (folder / "odd.csv").write_text(numbered(13))
    (folder / "text.txt").write_text(reviews(40))
    (folder / "places.json").write_text(json.dumps({"data": places()}))
    (folder / "one.json").write_text(json.dumps(CONFIGURATION))
    shutil.copytree(tiny_model, folder / "tiny")
    done = containers.run(image, "sh", "-c", JOB, docker_args=mounts(folder))
    logs = "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.log")))
    assert done.returncode == 0, logs + done.stderr
    yield folder
    clean = ["sh", "-c", "rm -rf /data/one /data/two"]  # another user's files
    containers.run(image, *clean, docker_args=mounts(folder))


def numbered(count: int) -> str:
    """Reviews whose labels are numbers: Hugging Face's run_glue.py takes no others with datasets 5."""
    return reviews(count).replace(",pos", ",1").replace(",neg", ",0")


def places() -> list[dict[str, Any]]:
    """Questions as Hugging Face's run_qa.py reads them: one to a row."""
    rows = []
    for number, (name, place) in enumerate([("tom", "paris"), ("mary", "rome")] * 8):
        answers = {"text": [place], "answer_start": [CONTEXT.index(place)]}
        rows.append({"id": str(number), "context": CONTEXT, "question": f"{name} lives in", "answers": answers})
    return rows


def mounts(folder: Path) -> list[str]:
    return [
        *("--network", "none", "--shm-size", "1g", "--volume", f"{folder}:/data"),
        *("--volume", f"{HERE / 'scripts'}:/scripts:ro", "--volume", f"{HERE}:/tests:ro"),
    ]


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def adapted(log: Path) -> list[str]:
    """The names of what was adapted, in their order."""
    # Not at a line's start where another rank's progress bar has just been drawn.
    return re.findall(r"adapted \(([\w-]+)\): ", log.read_text())


def test_an_unmodified_trainer_script_of_transformers_4_runs_on_two_ranks_of_ccl(folder: Path) -> None:
    metrics = read(folder / "two" / "metrics.json")
    assert metrics["backend"] == "ccl"
    assert metrics["world_size"] == 2
    assert metrics["rows_per_rank"] == 12  # half of them: without use_cpu each rank would train on all 24
    assert metrics["steps"] == 3


def test_one_rank_reports_each_adaptation_once(folder: Path) -> None:
    expected = "no-cuda ddp-backend use-ipex xpu-backend overwrite-output-dir evaluation-strategy telemetry"
    expected += " offline-metrics trainer-tokenizer loss-scale torch-tpu balanced-ranks"
    expected += " use-legacy-prediction-loop tpu-metrics-debug"
    assert sorted(adapted(folder / "two.log")) == sorted(expected.split())


def test_words_of_a_configuration_file_are_adapted_as_well(folder: Path) -> None:
    names = "no-cuda evaluation-strategy telemetry offline-metrics trainer-tokenizer torch-tpu"
    names += " use-legacy-prediction-loop tpu-metrics-debug"
    assert sorted(adapted(folder / "one.log")) == sorted(names.split())


def test_losses_are_those_of_one_process_with_gloo_in_spite_of_ranks_and_accumulation(folder: Path) -> None:
    """Without the adaptation they would be four times as large, and those of the evaluation twice."""
    one, two = read(folder / "one" / "metrics.json"), read(folder / "two" / "metrics.json")
    assert one["backend"] == "gloo"
    assert one["steps"] == two["steps"] == 3
    assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-3)
    assert two["accuracy"] == one["accuracy"]


def test_a_loop_with_accelerate_distributes_over_the_group_that_exists(folder: Path) -> None:
    seen = read(folder / "loop.json")
    assert (seen["backend"], seen["world_size"], seen["distributed"]) == ("ccl", 2, "DistributedType.MULTI_CPU")
    assert seen["steps"] == 3  # of 4 rows on each of two ranks
    assert seen["rows"] == 13
    assert {"accuracy", "f1"} <= set(seen)
    expected = ["load-metric", "accelerate-cpu", "auth-token", "accelerator-names", "offline-metrics"]
    assert adapted(folder / "loop.log") == expected


def test_a_rank_of_accelerates_trains_the_memory_that_its_layers_keep(image: str, folder: Path) -> None:
    """No copies of them, which take memory, and which IPEX's layers would not use."""
    upstream = script(image, folder, *RANK, "--no-adapt", "cpu-device", "/scripts/kept_weights.py")
    adapted = script(image, folder, *RANK, "/scripts/kept_weights.py")
    assert upstream.returncode == adapted.returncode == 0, upstream.stderr + adapted.stderr
    assert [json.loads(done.stdout) for done in (upstream, adapted)] == [["cpu:0", False], ["cpu", True]]


@pytest.mark.parametrize("name", EXAMPLE_FLAGS)
def test_hugging_faces_unmodified_example_runs_on_two_ranks(image: str, folder: Path, name: str) -> None:
    examples = Path(os.environ.get(EXAMPLES, ""))
    if EXAMPLES not in os.environ or not (examples / name).is_file():
        pytest.skip(f"{EXAMPLES} names no folder with {name}: the examples are not part of this repository")
    flags = f"{EXAMPLE_FLAGS[name]} --num_train_epochs 1 --output_dir /tmp/out"
    job = f"{TWO} --quiet /examples/{name} {flags}"
    done = containers.run(
        image,
        *("sh", "-c", f"({job}) 1>&2 || exit 1; cat /tmp/out/all_results.json"),
        docker_args=[*mounts(folder), "--volume", f"{examples.resolve()}:/examples:ro"],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    scores = json.loads(done.stdout)
    assert 0 <= scores.get("eval_accuracy", scores.get("eval_f1")) <= 100


def script(image: str, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return containers.run(image, *argv, docker_args=mounts(folder))


def test_a_disabled_adaptation_is_not_applied(image: str, folder: Path) -> None:
    argv = ["--quiet", "--no-adapt", "all", "/scripts/classify.py", *FILES.split(), "--output_dir", "/data/none"]
    done = script(image, folder, "run", *argv)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: cannot import name 'is_torch_tpu_available'")


def test_a_script_finds_the_optimizer_and_the_methods_of_tokenizers_of_transformers_4(
    image: str, folder: Path
) -> None:
    done = script(image, folder, "run", "--quiet", "/scripts/old_names.py")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    # The first step is lr, or without the correction lr * (1 - 0.9) / sqrt(1 - 0.999). Then the weight decays.
    weights = [(1 - 0.1) * 0.95, (1 - 0.1 * 0.1 / 0.001**0.5) * 0.95]
    assert seen.pop("weights") == pytest.approx(weights, rel=1e-5)
    assert seen == {"length": 8, "pairs": True, "labels": True}
    assert set(re.findall(r"adapted \(([\w-]+)\): ", done.stderr)) == {"adamw", "encode-plus", "moved-names"}


def test_the_images_metrics_have_the_values_of_their_definitions(image: str, folder: Path) -> None:
    done = script(image, folder, "run", "--quiet", "/scripts/scores.py")
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: evaluate.load('glue', 'sst3'): expected one of cola, "), done.stderr
    pairs = json.loads(done.stdout)
    assert len(pairs) == 20
    for name, (ours, theirs) in pairs.items():
        assert ours == pytest.approx(theirs, rel=1e-5), name  # torchmetrics counts in float32


def test_a_script_that_creates_the_group_gets_the_existing_one(image: str, folder: Path) -> None:
    done = script(
        image, folder, "launch", "--nproc-per-node", "2", "--", "run", "--quiet", "/scripts/group.py", "same"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ccl 2\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "requests backend nccl, the existing process group uses ccl" in lines[0]
    assert "timeout" in lines[1]


def test_a_group_that_contradicts_the_existing_one_is_one_line(image: str, folder: Path) -> None:
    done = script(image, folder, "run", "--quiet", "/scripts/group.py", "other-size")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "init_process_group(world_size=2), but the launcher gave this process world_size 1" in line


PARSED = """
import gc, shlex, sys
gc.disable()  # imports are quicker
from cpu_train_stack.train.main import prepare
for line in sys.stdin:
    prepare(shlex.split(line)[1:])
    print("understood")
"""


def test_the_trainers_lines_in_the_recipes_are_understood(image: str) -> None:
    recipes = (HERE.parents[1] / "docs" / "recipes.md").read_text()
    lines = re.findall(r"^    \./inv .* -- (train .*)$", recipes, re.MULTILINE)
    assert len(lines) >= 6
    words = "\n".join(lines)
    done = containers.run(
        image, "sh", "-c", 'printf "%s" "$LINES_" | python -c "$CODE"', env={"LINES_": words, "CODE": PARSED}
    )
    assert done.stdout.splitlines() == ["understood"] * len(lines), done.stderr


BROKEN = {
    "same.py": "import torch.distributed as dist\ndist.barrier()\nrow = {'text': 1}\nprint(row['label'])\n",
    "one.py": "import torch, torch.distributed as dist\nif dist.get_rank() == 1:\n    1 / 0\n"
    "dist.all_reduce(torch.ones(1))\n",
    "syntax.py": "def main(:\n    pass\n",
    "trainer.py": """
import gc; gc.disable()  # imports are quicker
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
class Own(Trainer):
    def compute_loss(self, model, inputs, weights):
        return model(**inputs).loss * weights
config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
rows = [{"input_ids": [1], "attention_mask": [1], "labels": 0}] * 16
Own(BertForSequenceClassification(config), TrainingArguments("/tmp/o"), train_dataset=rows).train()
""",
}


def test_a_broken_script_shows_its_error_once_without_frames_of_the_stack(image: str, tmp_path: Path) -> None:
    """By the rank that failed first, with one line at most of the other, behind it."""
    tmp_path.chmod(0o755)
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    runs = "; ".join(f"{TWO} --quiet /broken/{name}; echo === $?" for name in BROKEN)
    done = containers.run(
        image,
        *("sh", "-c", f"exec 2>&1; {runs}"),
        docker_args=["--network", "none", "--shm-size", "1g", "--volume", f"{tmp_path}:/broken:ro"],
    )
    same, one, syntax, trainer, rest = done.stdout.split("=== 1\n")
    assert rest == ""
    assert "/cpu_train_stack/" not in done.stdout
    for text, error in (
        (same, "KeyError: 'label'"),
        (one, "ZeroDivisionError"),
        (syntax, "SyntaxError"),
        (trainer, "TypeError"),
    ):
        told = re.findall(rf"^\[rank[01]\]: {error}", text, re.MULTILINE)
        assert len(told) == 1, text
        assert text.count("[rank0]") == 0 or text.count("[rank1]") == 0, text
    # The launcher may have ended the other one before it could say its line.
    lines = [line for line in same.splitlines() if not line.startswith("[")]
    line = r"rank [01]: KeyError: 'label' \(/broken/same.py:4\); rank [01] failed first"
    assert len(lines) <= 2
    assert all(re.fullmatch(line, one) for one in lines[:-1])
    assert "exited with code 1" in lines[-1]
    assert '[rank1]:   File "/broken/one.py", line 3' in one
    assert 'File "/broken/syntax.py", line 1' in syntax
