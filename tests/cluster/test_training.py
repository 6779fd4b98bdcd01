"""Training over two containers: losses as on one rank, the quality that it reaches, death and resumption."""

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Running, containers, inv
from tooling.basis.paths import CACHE, ROOT
from tooling.cluster import demo_data

SHARED = ROOT.parent / "shared" / "data"
TRAIN = ("train", "--output_dir=/output", "--bf16", "--seed=42")
MODEL, FIRST_LAYERS = "--model_name_or_path=/data/model", "--model_name_or_path=/data/first-layers"
# Rows of an evaluation whose quality does not matter. Odd: two ranks evaluate different numbers of rows.
FEW = 301
KILL_A_RANK = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit() and b"cpu_train_stack.rank.worker" in (folder / "cmdline").read_bytes():
        os.kill(int(folder.name), signal.SIGKILL)
        break
else:
    raise SystemExit("no rank found")
"""


@dataclass(frozen=True)
class Data:
    """A folder to mount at /data: `model`, `first-layers` (two of its six layers) and pairs of sentences.

    few.csv has `few` rows of test.csv.
    """

    folder: Path
    few: int


@pytest.fixture(scope="module")
def pairs(model_folder: Path) -> Iterator[Data]:
    """MRPC if this machine has it. Otherwise pairs from docstrings: do the two halves belong together?"""
    folder = CACHE / "tests" / f"pairs-{os.getpid()}"
    shutil.copytree(model_folder, folder / "model")
    shutil.copytree(model_folder, folder / "first-layers")
    config = folder / "first-layers" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 2}))
    source = SHARED / "mrpc"
    for name in ("train.csv", "test.csv"):
        if source.is_dir():
            shutil.copy(source / name, folder / name)
    if not source.is_dir():
        generate_pairs(folder)
    with (folder / "test.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))[: 1 + FEW]
    with (folder / "few.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(rows)
    yield Data(folder, few=len(rows) - 1)
    shutil.rmtree(folder)


def generate_pairs(folder: Path) -> None:
    """Writes train.csv and test.csv with MRPC's columns and label semantics."""
    paths = demo_data.write(folder)
    for path in paths:
        with path.open(encoding="utf-8", newline="") as stream:
            words = [row["text"].split() for row in csv.DictReader(stream)]
        words = [text for text in words if len(text) >= 8] * 2
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("sentence1", "sentence2", "label"))
            for number, text in enumerate(words):
                other = text if number % 2 else words[(number * 7 + 1) % len(words)]
                half = len(text) // 2
                writer.writerow((" ".join(text[:half]), " ".join(other[len(other) // 2 :]), number % 2))


def train(
    name: str,
    data: Data,
    output: Path,
    nodes: int,
    *arguments: str,
    validation: str = "few.csv",
    timeout: float = 900,
) -> dict[str, Any]:
    """Trains on a cluster and returns its result.json."""
    result = inv(
        *("up", f"--name={name}", f"--nodes={nodes}", "--offline", f"--data={data.folder}", f"--output={output}"),
        *("--", *TRAIN, "--train_file=/data/train.csv", f"--validation_file=/data/{validation}", *arguments),
        timeout=timeout,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    document: dict[str, Any] = json.loads((output / "result.json").read_text())
    return document


def test_one_rank_and_two_ranks_of_either_process_group_train_alike(
    pairs: Data, tmp_path: Path, image: str
) -> None:
    common = (
        *("--max_steps=50", "--learning_rate=2e-4", "--eval_strategy=no", "--save_strategy=no", "--do_eval"),
        *(FIRST_LAYERS, "--max_seq_length=32"),
    )
    # Ranks, rows a rank, process group. For accumulation, see tests/image/test_ways_to_train.py.
    runs = {"one": (1, 16, "ccl"), "two": (2, 8, "ccl"), "gloo": (2, 8, "gloo")}
    results = {}
    for name, (ranks, batch, backend) in runs.items():
        sizes = (f"--per_device_train_batch_size={batch}", f"--backend={backend}")
        output = tmp_path / name
        results[name] = train(f"parity-{name}", pairs, output, ranks, *common, "--do_train", *sizes)
    losses = {name: result["train_loss_first_50"] for name, result in results.items()}
    assert max(losses.values()) / min(losses.values()) < 1.02, losses
    # The same batches through both process groups.
    assert losses["two"] == pytest.approx(losses["gloo"], rel=0.005), losses
    after = [results[name]["metrics"]["eval_loss"] for name in ("two", "gloo")]
    assert after[0] == pytest.approx(after[1], rel=0.005), after
    for name, result in results.items():
        assert result["backend"] == runs[name][2]
        assert result["world_size"] == runs[name][0]
        assert result["metrics"]["eval_samples"] == pairs.few, name
        assert len(set(result["weights_sha256"])) == 1, name
        assert len(result["weights_sha256"]) == runs[name][0]


@pytest.mark.timeout(1500)  # a CPU without bf16 instructions that other tests use too took more than 900 s
@pytest.mark.skipif(not (SHARED / "mrpc").is_dir(), reason="MRPC is not here: its accuracy cannot be measured")
def test_minilm_reaches_its_accuracy_on_mrpc(pairs: Data, tmp_path: Path, image: str) -> None:
    arguments = ("--num_train_epochs=1", "--per_device_train_batch_size=8", "--learning_rate=1e-4")
    plain = (
        *(MODEL, "--eval_strategy=no", "--save_strategy=no", "--do_eval", "--do_train"),
        *("--max_seq_length=128", "--group_by_length"),
    )
    result = train("mrpc", pairs, tmp_path, 2, *arguments, *plain, validation="test.csv", timeout=1400)
    assert result["steps"] == 255
    assert result["metrics"]["eval_samples"] == 1725
    # Without training: 0.665, and a loss of 0.638. Seeds differ (0.715 to 0.781, 0.475 to 0.552,
    # benchmarks/results/no-padding-mrpc.json), and so does one seed on CPUs that round differently.
    assert result["metrics"]["eval_accuracy"] >= 0.7, result["metrics"]
    assert result["metrics"]["eval_loss"] <= 0.6, result["metrics"]


def test_a_killed_rank_ends_the_job_and_a_restart_continues_with_the_same_samples(
    pairs: Data, tmp_path: Path, start: Callable[..., Running]
) -> None:
    output = tmp_path / "output"
    arguments = (
        *(MODEL, "--max_steps=30", "--save_strategy=steps", "--save_steps=5", "--per_device_train_batch_size=4"),
        *("--eval_strategy=no", "--do_train", "--logging_steps=1", "--max_seq_length=32"),
    )
    files = ("--train_file=/data/train.csv", "--validation_file=/data/few.csv")
    cluster = ("--nodes=2", "--offline", f"--data={pairs.folder}", f"--output={output}", "--max-restarts=1")
    running = start("dying", *cluster, "--", *TRAIN, *files, *arguments)
    running.wait_for(lambda printed: "step 14/30" in printed)
    victim = next(name for name in containers("dying") if "node-1" in name)
    subprocess.run(
        ["docker", "exec", victim, "python", "-c", KILL_A_RANK], check=True, capture_output=True, timeout=60
    )
    assert running.wait(300) == 0, running.output()
    first, second = running.output().split("restart 1 of 1")
    assert re.search(r"rank 1 .*was killed by SIGKILL", first)
    assert containers("dying") == []
    kept = inv("logs", "--name=dying").stdout
    assert "step 1/30 " in kept
    assert "step 30/30 " in kept

    result = json.loads((output / "result.json").read_text())
    assert result["steps"] == 30
    assert Path(result["resumed_from"]).name == "checkpoint-10"
    # What was trained twice was trained on the same samples, and nothing before the checkpoint was trained again.
    losses = [dict(re.findall(r"step (\d+)/30  loss (\d+\.\d+)", part)) for part in (first, second)]
    assert [min(map(int, part)) for part in losses] == [1, 11]
    twice = sorted(losses[0].keys() & losses[1].keys(), key=int)
    assert twice[:4] == ["11", "12", "13", "14"]
    assert [float(losses[1][step]) for step in twice] == pytest.approx(
        [float(losses[0][step]) for step in twice], rel=0.01
    )
