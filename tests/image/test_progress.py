"""What the ranks of a TrainJob report to Kubeflow Trainer, and that training never waits for its answers."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import certificates, containers
from tests.image import container_scripts
from tests.image.train_runs import ONE_THREAD, line, mounts, result

SCRIPT = """
import json
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(16)]
config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
arguments = TrainingArguments("/output/script", max_steps=3, report_to=[], save_strategy="no", logging_steps=1)
done = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows).train()
if arguments.process_index == 0:
    json.dump(done.metrics, open("/output/metrics.json", "w"))
"""
# As long as transformers waits for an answer: a training that waits takes longer.
ANSWER_SECONDS = 5.0


@pytest.fixture
def report(image: str, train_data: Path, tmp_path: Path) -> Any:
    """Run a command on ranks beside a server, which takes `seconds` to answer."""
    output, keys = tmp_path / "output", tmp_path / "keys"
    output.mkdir()
    certificates.make(keys)
    for folder, mode in ((tmp_path, 0o755), (output, 0o777), (keys, 0o755), (keys / "key.pem", 0o644)):
        folder.chmod(mode)
    (output / "script.py").write_text(SCRIPT)

    def run(
        seconds: str, *command: str, ranks: int = 1
    ) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]], Path]:
        volumes = [*mounts(train_data, output), *container_scripts.MOUNT, "--volume", f"{keys}:/keys:ro"]
        server = ("python", "/s/progress_server.py", "/keys", seconds)
        launch = ("launch", f"--nproc-per-node={ranks}", "--") if ranks > 1 else ()
        done = containers.run(image, *server, "entrypoint", *launch, *command, env=ONE_THREAD, docker_args=volumes)
        assert done.returncode == 0, done.stderr
        return done, json.loads(done.stdout)["reports"], output

    return run


def _check(reports: list[dict[str, Any]]) -> None:
    """One rank reports the beginning, the end, and what it logged between them."""
    percent = [one["progressPercentage"] for one in reports]
    assert (percent[0], percent[-1], percent.count(0)) == (0, 100, 1)
    assert {(one["path"], one["token"]) for one in reports} == {("/status", "Bearer secret")}
    assert reports[-1]["estimatedRemainingSeconds"] == 0
    names = {metric["name"] for metric in reports[-1]["metrics"]}
    assert {"train_loss", "train_samples_per_second"} <= names, names


def test_train_reports_its_progress(report: Any) -> None:
    _check(report("0", "train", *line("/output/answered", max_steps=3, logging_steps=1), ranks=2)[1])


RANKS = pytest.mark.parametrize("ranks", [1, 2])


@RANKS
def test_a_script_reports_its_progress(report: Any, ranks: int) -> None:
    _check(report("0", "run", "/output/script.py", ranks=ranks)[1])


@RANKS
def test_a_server_that_does_not_answer_delays_no_step(report: Any, ranks: int) -> None:
    _, reports, output = report("60", "run", "/output/script.py", ranks=ranks)
    assert reports
    assert json.loads((output / "metrics.json").read_text())["train_runtime"] < ANSWER_SECONDS


def test_a_server_that_is_down_changes_nothing(report: Any) -> None:
    done, reports, output = report("down", "train", *line("/output/down", max_steps=3))
    assert (reports, result(output / "down")["steps"]) == ([], 3)
    assert "Traceback" not in done.stderr
