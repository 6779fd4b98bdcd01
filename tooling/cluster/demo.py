"""`./inv demo`: one complete run, on real text with a real pretrained encoder, and its results."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit
from rich.console import Console
from rich.table import Table

from entrypoints import contract
from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE
from tooling.basis.say import Say
from tooling.cluster import demo_data, pretrained
from tooling.cluster import run as cluster
from tooling.cluster.compose import ClusterSpec, Mount
from tooling.engine import api
from tooling.image import inspect
from tooling.image.choice import Choice
from tooling.pins import status
from tooling.pins.status import Status

FOLDER = CACHE / "demo"
RESULT = FOLDER / "result.json"
# The metric must rise by this much: with eight labels an untrained head is right about one time in eight.
CLEAR_RISE = 0.3
# Global, so that any number of ranks takes the same steps over the same data.
BATCH_SIZE = 32
HYPERPARAMETERS = {
    "num_train_epochs": "2",
    "learning_rate": "2e-4",
    "max_seq_length": "64",
    "logging_steps": "10",
    "eval_strategy": "no",
    "save_strategy": "no",
    "seed": "42",
}


@dataclass(frozen=True)
class Verdict:
    """Whether the demo passed; `problems` describes each check that failed."""

    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.problems


def run(choice: Choice, node_count: int, ranks_per_node: int, backend: str, launcher: str, say: Say) -> None:
    """Builds, trains on a cluster, prints a summary, writes .cache/demo/result.json.

    Raises Exit with the cluster's code if a rank failed, with 1 if the model did not learn.
    """
    row = choice.row
    batch, rest = divmod(BATCH_SIZE, node_count * ranks_per_node)
    if rest or not batch:
        raise UsageError(
            f"{node_count * ranks_per_node} ranks cannot share a batch of {BATCH_SIZE}: use 1, 2, 4 or 8"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    RESULT.unlink(missing_ok=True)
    docker = api.ensure(say)
    image = choice.ensure_image(docker, say)
    model = pretrained.minilm(say)
    train, test = demo_data.write(FOLDER / "data")
    output = FOLDER / "output"
    (output / "result.json").unlink(missing_ok=True)
    spec = ClusterSpec(
        name="demo",
        image=image.tag,
        nodes=node_count,
        ranks_per_node=ranks_per_node,
        command=train_command(batch, backend, train.name, test.name),
        mounts=(
            Mount(model, "/model"),
            Mount(FOLDER / "data", "/data"),
            Mount(cluster.writable_folder(output), "/output", read_only=False),
        ),
        environment={contract.IMAGE: image.id},
        offline=True,
        launcher=launcher,
    )
    say(f"starting {node_count} containers with {ranks_per_node} rank(s) each on a private network")
    started = time.time()
    outcome = cluster.run(spec, docker, say)
    if outcome.exit_code != 0:
        raise Exit(f"the demo failed: the cluster ended with code {outcome.exit_code}", code=outcome.exit_code)
    result = json.loads((output / "result.json").read_text(encoding="utf-8"))
    train_seconds = result["seconds"]["train"]
    result["seconds"] = {
        **result["seconds"],
        "build": round(image.seconds, 1),
        "start": round(result["train_started_at"] - started, 1),
        "train": round(train_seconds, 1),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    verdict = judge(result, node_count * ranks_per_node, backend)
    summarize(result, verdict)
    if not verdict.passed:
        raise Exit("the demo failed: " + "; ".join(verdict.problems), code=1)
    status.record_image(inspect.content_sha256(image.id), {"image": image.id, "pin": result["pin"]})
    if row and status.record(row, Status.TESTED, f"./inv demo{choice.typed}"):
        say(f"pin {row.name} is now tested, as recorded in {_relative(status.STATUS_FILE)}")


def train_command(batch: int, backend: str, train_file: str, validation_file: str) -> tuple[str, ...]:
    """The image's own trainer on the mounted model and data."""
    command = ["train", "--model_name_or_path=/model", f"--train_file=/data/{train_file}"]
    command += [f"--validation_file=/data/{validation_file}", "--output_dir=/output", "--overwrite_output_dir"]
    command += [
        f"--backend={backend}",
        "--bf16",
        "--eval_on_start",
        "--do_train",
        "--do_eval",
        f"--per_device_train_batch_size={batch}",
    ]
    return (*command, *(f"--{name}={value}" for name, value in HYPERPARAMETERS.items()))


def judge(result: dict[str, Any], world_size: int, backend: str) -> Verdict:
    """What a result must show: every rank took part, in bf16, the loss fell and the metric rose clearly."""
    problems = []
    if result["world_size"] != world_size:
        problems.append(f"{result['world_size']} ranks trained together, expected {world_size}")
    if result["backend"] != backend:
        problems.append(f"the process group was {result['backend']}, expected {backend}")
    if not result["bf16"]:
        problems.append("it did not run in bf16")
    if not result["train_loss_last"] < result["train_loss_first"]:
        problems.append(f"the loss went from {result['train_loss_first']:.3f} to {result['train_loss_last']:.3f}")
    if not result["metric_after"] - result["metric_before"] >= CLEAR_RISE:
        problems.append(
            f"{result['metric_name']} went from {result['metric_before']:.3f} to {result['metric_after']:.3f}, "
            f"expected a rise of {CLEAR_RISE} or more"
        )
    return Verdict(tuple(problems))


def summarize(result: dict[str, Any], verdict: Verdict) -> None:
    """Prints the result as a table on standard output."""
    seconds = result["seconds"]
    table = Table(
        title="demo: passed" if verdict.passed else "demo: failed", title_justify="left", show_header=False
    )
    rows = {
        "pin": result["pin"],
        "image": result["image"].removeprefix("sha256:")[:12],
        "ranks": f"{result['world_size']} on {result['nodes']} nodes, {result['backend']}, "
        + ("bf16" if result["bf16"] else "fp32"),
        "speed": f"{result['train_samples_per_second']:.1f} samples/s",
        "training loss": f"{result['train_loss_first']:.3f} -> {result['train_loss_last']:.3f}",
        result["metric_name"]: f"{result['metric_before']:.3f} -> {result['metric_after']:.3f}",
        "seconds": f"build {seconds['build']}, start {seconds['start']}, train {seconds['train']}",
        "details": str(_relative(RESULT)),
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console().print(table)


def _relative(path: Path) -> Path:
    return path.relative_to(CACHE.parent)
