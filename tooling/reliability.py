"""`./inv faults`: every fault under both launchers, on real training, and the recovery from it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit
from rich.console import Console
from rich.table import Table

from tooling import demo_data, fault_trial, pretrained
from tooling.cluster import writable_folder
from tooling.compose import LAUNCHERS
from tooling.errors import UsageError
from tooling.faults import FAULTS, Fault
from tooling.locking import alone
from tooling.paths import CACHE, ROOT

FOLDER = CACHE / "faults"
# Of a collective; the job has to end within this and 30 s.
TIMEOUT_SECONDS = 30
SAVE_STEPS, FAULT_STEP, MAX_STEPS = 4, 6, 10
RECOVERY_SECONDS = 600.0
TABLE_WIDTH = 120
TRAIN = (
    *("train", "--model_name_or_path=/data/model", "--train_file=/data/train.csv", "--output_dir=/output"),
    *("--bf16", "--do_train", "--per_device_train_batch_size=4", "--max_seq_length=32", "--logging_steps=1"),
    *(f"--max_steps={MAX_STEPS}", f"--save_steps={SAVE_STEPS}", "--save_strategy=steps", "--eval_strategy=no"),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One line of the table. `steps_lost`: trained before the fault and again after it; None: no recovery."""

    fault: str
    launcher: str
    detected_seconds: float | None
    ended_seconds: float
    exit_code: int
    left: tuple[str, ...]
    steps_lost: int | None
    problems: tuple[str, ...]


def run(only: str, launcher: str, say: Say) -> None:
    """Runs the chosen faults and prints the table; writes .cache/faults/faults.json. Raises Exit if one was not
    survived as it should be."""
    chosen = [fault for name, fault in FAULTS.items() if re.search(only, name)]
    launchers = [name for name in LAUNCHERS if launcher in ("", name)]
    if not chosen or not launchers:
        raise UsageError(
            f"no fault is {only!r} under {launcher or 'any launcher'}: expected some of {', '.join(FAULTS)}, "
            f"and {' or '.join(LAUNCHERS)}"
        )
    rows = []
    with alone(FOLDER / ".lock", lambda: say("waiting for another ./inv faults")):
        data = _data(say)
        for fault in chosen:
            for name in launchers:
                say(f"{fault.name} under {name}: {fault.what}")
                rows.append(_try(fault, name, data))
                say(f"  {describe(rows[-1])}")
    document = {"rows": [{**row.__dict__} for row in rows], "timeout_seconds": TIMEOUT_SECONDS}
    (FOLDER / "faults.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(table(rows))
    if any(row.problems for row in rows):
        raise Exit("not every fault was survived as it should be", code=1)


def judge(trial: fault_trial.Trial, fault: Fault, steps_lost: int | None) -> tuple[str, ...]:
    """What is wrong with the way a fault ended, in words."""
    problems = []
    if trial.exit_code == 0:
        problems.append("exit code 0")
    if trial.detected_seconds is None and fault.causes[trial.launcher]:
        problems.append("its cause was not named")
    if trial.ended_seconds > TIMEOUT_SECONDS + 30:
        problems.append("too late")
    if trial.left:
        problems.append("left something behind")
    if steps_lost is None:
        problems.append("no recovery")
    elif not 0 <= steps_lost <= SAVE_STEPS + 1:  # a step may be done and not yet told when its checkpoint is due
        problems.append(f"recovery lost {steps_lost} steps")
    return tuple(problems)


def describe(row: Row) -> str:
    """A row in one line."""
    detected = "-" if row.detected_seconds is None else f"{row.detected_seconds:.1f} s"
    return (
        f"detected after {detected}, ended after {row.ended_seconds:.1f} s with code {row.exit_code}, "
        f"left {', '.join(row.left) or 'nothing'}, steps lost {row.steps_lost}: "
        f"{'; '.join(row.problems) or 'good'}"
    )


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    shown = Table(
        "fault", "launcher", "detected (s)", "ended (s)", "exit code", "left behind", "steps lost", "verdict"
    )
    for row in rows:
        detected = "" if row.detected_seconds is None else f"{row.detected_seconds:.1f}"
        cells = (detected, f"{row.ended_seconds:.1f}", str(row.exit_code), ", ".join(row.left) or "nothing")
        lost = "" if row.steps_lost is None else str(row.steps_lost)
        shown.add_row(row.fault, row.launcher, *cells, lost, "; ".join(row.problems) or "good")
    return shown


def _data(say: Say) -> Path:
    folder = FOLDER / "data"
    if not (folder / "model").is_dir():
        shutil.copytree(pretrained.minilm(say), folder / "model")
    demo_data.write(folder)
    return folder


def _try(fault: Fault, launcher: str, data: Path) -> Row:
    output = FOLDER / "output"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    options = (f"--data={data}", f"--output={output}", "--offline")
    with fault_trial.small_file_system(output, fault.output_megabytes) as enlarge:
        writable_folder(output)
        limit = TIMEOUT_SECONDS + 60
        ready = rf"step {FAULT_STEP}/"
        command = (*TRAIN, f"--ddp_timeout={TIMEOUT_SECONDS}")
        trial = fault_trial.run(fault, launcher, options, command, ready, limit)
        (FOLDER / f"{fault.name}-{launcher}.txt").write_text(trial.output, encoding="utf-8")
        enlarge()
        lost = _recover(launcher, options, output, trial.output)
    return Row(
        fault=fault.name,
        launcher=launcher,
        detected_seconds=trial.detected_seconds,
        ended_seconds=trial.ended_seconds,
        exit_code=trial.exit_code,
        left=trial.left,
        steps_lost=lost,
        problems=judge(trial, fault, lost),
    )


def _recover(launcher: str, options: Sequence[str], output: Path, printed: str) -> int | None:
    """Trains on to the end. Returns how many steps were done a second time, None if it did not get there."""
    argv = [str(ROOT / "inv"), "up", "--name=fault-recovery", f"--launcher={launcher}", *options]
    argv += ["--", *TRAIN, "--resume_from_checkpoint=true"]
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=RECOVERY_SECONDS, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    result = json.loads((output / "result.json").read_text(encoding="utf-8"))
    if result["steps"] != MAX_STEPS or not result["resumed_from"]:
        return None
    reached = max(int(step) for step in re.findall(rf"step (\d+)/{MAX_STEPS}", printed))
    return reached - int(Path(result["resumed_from"]).name.rpartition("-")[2])
