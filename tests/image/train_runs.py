"""Data for the trainer's tests, and runs of one rank in a container."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests import containers

# What each run printed and returned, by its name.
Runs = dict[str, dict[str, Any]]

# For tiny models: threads that share cores with other tests wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

HERE = Path(__file__).parent
WORDS = {"pos": ("good", "great", "fine", "superb"), "neg": ("bad", "awful", "poor", "dull")}
CONTEXT = "tom lives in paris and mary lives in rome " * 4
# The same 22 rows in the same order, whoever computes them: 8 rows a step, plain gradients, no noise.
PARITY = {"optim": "sgd", "max_grad_norm": 0, "lr_scheduler_type": "constant", "eval_strategy": "no"}


def reviews(count: int) -> str:
    """A csv of short reviews that a model can learn, both labels in turn."""
    rows = []
    for number in range(count):
        label = ("pos", "neg")[number % 2]
        rows.append(f"the film number {number} was {WORDS[label][number // 2 % 4]},{label}")
    return "\n".join(["text,label", *rows, ""])


def scored(count: int) -> str:
    """Half a point for each `good`, from 0 to 3."""
    rows = [f"film {number % 5} {'good ' * (number % 7)}end,{number % 7 / 2}" for number in range(count)]
    return "\n".join(["sentence,score", *rows, ""])


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


def run_alone(image: str, data: Path, output: Path, lines: dict[str, list[str]], models: str = "") -> Runs:
    """Runs of one rank, in one process because imports take seconds.

    `models`: a script of tests/image/scripts that first saves models with the tiny model's tokenizer to `output`.
    """
    made = {"": ["python", f"/tests/scripts/{models}", "/data/tiny", "/output"]} if models else {}
    (output / "lines.json").write_text(json.dumps([*made.values(), *lines.values()]))
    done = _run(image, data, output, "python", "/tests/many_runs.py", "/output/lines.json")
    runs: Runs = dict(zip([*made, *lines], json.loads(done.stdout), strict=True))
    assert not models or runs.pop("")["code"] == 0, done.stdout
    return runs


def run_together(
    image: str, data: Path, output: Path, lines: dict[str, list[str]], backend: str = "ccl", **env: str
) -> Runs:
    """Runs of two ranks, by one pair of processes. What each run printed is that of rank 0."""
    (output / "lines.json").write_text(json.dumps(list(lines.values())))
    job = ("run", "--no-adapt=all", f"--backend={backend}", "--timeout=60", "/tests/many_runs.py")
    files = ("/output/lines.json", "/output/results.json")
    _run(image, data, output, "launch", "--nproc-per-node=2", "--", *job, *files, **env)
    return dict(zip(lines, json.loads((output / "results.json").read_text()), strict=True))


def _run(image: str, data: Path, output: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    output.chmod(0o777)
    done = containers.run(image, *argv, env={**ONE_THREAD, **env}, docker_args=mounts(data, output), timeout=600)
    assert done.returncode == 0, done.stderr
    return done


def result(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return document
