"""`./inv demo`: builds the image, and fine-tunes a pretrained model on a local cluster.

The task `classification` trains an encoder on real text. The task `sft` trains a decoder on chats, and asks it
before and after the training (demo_answers). `train` does the training; on a row whose transformers is too old for
it, examples/finetune.py trains the classifier.
"""

import json
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from invoke.exceptions import Exit
from packaging.version import Version
from rich.table import Table

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, check_all
from cpu_train_stack.cli.say import say
from tooling.basis.console import PrintableConsole
from tooling.basis.paths import CACHE, ROOT, shown
from tooling.cluster import demo_answers, demo_chats, demo_data, pretrained, result, run
from tooling.cluster.compose import ClusterSpec, check_backend, check_launcher
from tooling.cluster.spec import Mount
from tooling.engine import api
from tooling.image import inspect
from tooling.image.choice import Choice
from tooling.pins import status
from tooling.pins.pin import Pin
from tooling.pins.status import PinStatus

CLASSIFICATION, SFT = "classification", "sft"
TaskOption = Annotated[
    str, f"what to train: {CLASSIFICATION} (an encoder, with its accuracy) or {SFT} (a decoder, with its answers)"
]
FOLDERS = {CLASSIFICATION: CACHE / "demo", SFT: CACHE / "demo-sft"}
# The least rise of the metric. An untrained classifier of eight labels has an accuracy of about 1/8.
CLEAR_RISE = 0.3
# Of all ranks together, so that any number of ranks makes the same steps with the same data.
BATCH_SIZE = 32
SFT_BATCH_SIZE = 16
HYPERPARAMETERS = {
    "num_train_epochs": "1",
    "learning_rate": "2e-4",
    "max_seq_length": "64",
    "logging_steps": "10",
    "eval_strategy": "no",
    "save_strategy": "no",
    "seed": "42",
}
SFT_HYPERPARAMETERS = {**HYPERPARAMETERS, "num_train_epochs": "1", "max_seq_length": "128", "logging_steps": "5"}
# Options of examples/finetune.py, and the hyperparameters whose values they get. The script has the same seed.
OPTIONS = {"epochs": "num_train_epochs", "learning-rate": "learning_rate", "length": "max_seq_length"}
SCRIPT = ROOT / "examples" / "finetune.py"


def demo(
    choice: Choice,
    node_count: int,
    ranks_per_node: int,
    backend: str,
    launcher: str,
    task: str = CLASSIFICATION,
) -> None:
    """Build the image, train on a cluster, print a summary, and write result.json to the task's folder in .cache.

    Raises Exit with the cluster's exit code if a rank failed, or with 1 if the result is not as expected.
    """
    row = choice.row
    world_size = node_count * ranks_per_node
    batch_size = SFT_BATCH_SIZE if task == SFT else BATCH_SIZE
    if world_size < 1 or batch_size % world_size:
        possible = ", ".join(str(number) for number in range(1, batch_size + 1) if batch_size % number == 0)
        raise UsageError(f"{world_size} ranks cannot share a batch of {batch_size}: use one of {possible} ranks")
    check_all(  # before the image is built
        [
            partial(check_launcher, launcher),
            partial(check_backend, backend),
            partial(check_task, task, row),
        ]
    )
    folder = FOLDERS[task]
    folder.mkdir(parents=True, exist_ok=True)
    engine, image = choice.ensure()
    batch = batch_size // world_size
    held_out: list[demo_chats.Chat] = []
    if task == SFT:
        model = pretrained.smollm2()
        train, held_out = demo_chats.write(folder / "data")
        words = _train(batch, backend, train.name, SFT_HYPERPARAMETERS)
    else:
        model = pretrained.minilm()
        train, test = demo_data.write(folder / "data")
        words = command(row, batch, backend, train.name, test.name)
        shutil.copyfile(SCRIPT, folder / "data" / SCRIPT.name)
    output = (folder / "output").resolve()
    spec = ClusterSpec(
        name="demo",
        image=image.id,
        nodes=node_count,
        ranks_per_node=ranks_per_node,
        command=words,
        mounts=(
            Mount(model, "/model"),
            Mount(folder / "data", contract.DATA),
            Mount(output, contract.OUTPUT, read_only=False),
        ),
        environment={contract.IMAGE: image.id},
        offline=True,
        launcher=launcher,
    )
    questions = [question for question, _ in held_out]
    before = demo_answers.ask(image.id, model, questions, engine) if questions else []
    say(f"starting {node_count} containers on a private network; ranks in each container: {ranks_per_node}")
    started = time.time()
    outcome = run.run(spec, engine, prepare=partial(_remove_results, folder, output))
    if outcome.exit_code != 0:
        raise Exit(
            f"the demo failed: the cluster exited with code {outcome.exit_code}; its output is above and in "
            f"{shown(run.folder_of(spec.name) / 'log.txt')}",
            code=outcome.exit_code,
        )
    document = result.read(output)
    found = {"pin": row.name if row else None, "image": image.id, "nodes": node_count, **document}
    with result.understood(output):
        found["seconds"] = {
            **found["seconds"],
            "build": round(image.seconds, 1),
            "start": round(found["train_started_at"] - started, 1),
            "train": round(found["seconds"]["train"], 1),
        }
    if held_out:
        found |= demo_answers.compare(held_out, before, demo_answers.ask(image.id, output, questions, engine))
        demo_answers.show(found["answers"])
    path = folder / result.NAME
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    with result.understood(output):
        failures = check(found, world_size, backend)
        summarize(found, path, passed=not failures)
    if failures:
        raise Exit("the demo failed: " + "; ".join(failures), code=1)
    if engine.name == api.PODMAN:  # the records are about images that Docker has
        return
    status.record_image(inspect.content_sha256(image.id), {"image": image.id, "pin": found["pin"]})
    if row and status.record(row, PinStatus.TESTED, f"./inv demo {row.options}"):
        say(f"pin {row.name} is now tested, as recorded in {shown(status.STATUS_FILE)}")


def _remove_results(folder: Path, output: Path) -> None:
    """Remove the results of an earlier demo. A report that root has written there would be refused."""
    (folder / result.NAME).unlink(missing_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    run.writable_folder(output)


def check_task(task: str, row: Pin | None) -> None:
    """Raise UsageError for an unknown task, or for a row that cannot train it."""
    if task not in FOLDERS:
        raise UsageError(f"--task is {task!r}, expected {' or '.join(FOLDERS)}")
    if row and task == SFT and _is_old(row):
        raise UsageError(
            f"--task {SFT} needs transformers {contract.OLDEST_TRANSFORMERS} or newer, and pin {row.name} has "
            f"{row.packages['transformers']}: choose a newer pin"
        )


def command(row: Pin | None, batch: int, backend: str, train_file: str, validation_file: str) -> tuple[str, ...]:
    """What each rank runs to train the classifier, with an evaluation before and after the training.

    An image lock's image (no row) is expected to have `train`.
    """
    if row and _is_old(row):
        return script_command(batch, backend, train_file, validation_file)
    words = [f"--validation_file=/data/{validation_file}", "--eval_on_start", "--do_train", "--do_eval"]
    return _train(batch, backend, train_file, HYPERPARAMETERS, *words)


def _is_old(row: Pin) -> bool:
    return Version(row.packages["transformers"]) < Version(contract.OLDEST_TRANSFORMERS)


def _train(
    batch: int, backend: str, train_file: str, hyperparameters: Mapping[str, str], *more: str
) -> tuple[str, ...]:
    """`train` with the mounted model and data."""
    words = ["train", "--model_name_or_path=/model", f"--train_file=/data/{train_file}", *more]
    words += ["--output_dir=/output", "--overwrite_output_dir", f"--backend={backend}", "--bf16"]
    words += [f"--per_device_train_batch_size={batch}"]
    return (*words, *(f"--{name}={value}" for name, value in hyperparameters.items()))


def script_command(batch: int, backend: str, train_file: str, validation_file: str) -> tuple[str, ...]:
    """`run` with a script that trains the same model on the same data, with the same hyperparameters."""
    words = ["run", f"--backend={backend}", f"{contract.DATA}/{SCRIPT.name}", "--model=/model", "--output=/output"]
    words += [f"--train=/data/{train_file}", f"--test=/data/{validation_file}", f"--batch={batch}"]
    words += [f"--{option}={HYPERPARAMETERS[name]}" for option, name in OPTIONS.items()]
    return tuple(words)


def check(result: dict[str, Any], world_size: int, backend: str) -> list[str]:
    """Each way in which the result is not as expected: ranks, backend, bf16, a falling loss, a better metric."""
    failures = []
    if result["world_size"] != world_size:
        failures.append(f"{result['world_size']} ranks trained together, expected {world_size}")
    if result["backend"] != backend:
        failures.append(f"the process group was {result['backend']}, expected {backend}")
    if not result["bf16"]:
        failures.append("the training did not run in bf16")
    if not result["train_loss_last"] < result["train_loss_first"]:
        failures.append(f"the loss went from {result['train_loss_first']:.3f} to {result['train_loss_last']:.3f}")
    if not result["metric_after"] - result["metric_before"] >= CLEAR_RISE:
        failures.append(
            f"{result['metric_name']} went from {result['metric_before']:.3f} to {result['metric_after']:.3f}, "
            f"expected a rise of {CLEAR_RISE} or more"
        )
    return failures


def summarize(result: dict[str, Any], path: Path, passed: bool) -> None:
    """Print the result as a table on standard output."""
    seconds, rate = result["seconds"], result["train_samples_per_second"]
    table = Table(title="demo: passed" if passed else "demo: failed", title_justify="left", show_header=False)
    rows = {
        "pin": result["pin"],
        "image": result["image"].removeprefix("sha256:")[:12],
        "ranks": f"{result['world_size']} on {result['nodes']} nodes, {result['backend']}, "
        + ("bf16" if result["bf16"] else "fp32"),
        "speed": "not measured: too few steps" if rate is None else f"{rate:.1f} samples/s",
        "training loss": f"{result['train_loss_first']:.3f} -> {result['train_loss_last']:.3f}",
        result["metric_name"].replace("_", " "): f"{result['metric_before']:.3f} -> {result['metric_after']:.3f}",
        "seconds": f"build {seconds['build']}, start {seconds['start']}, train {seconds['train']}",
        "details": str(shown(path)),
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    PrintableConsole().print(table)
