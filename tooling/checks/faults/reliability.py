"""`./inv dev faults`: injects every fault into real training under both launchers, and resumes."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit
from rich.table import Table

from tooling.basis.console import console
from tooling.basis.errors import UsageError
from tooling.basis.files import locked
from tooling.basis.paths import CACHE, ROOT
from tooling.basis.say import Say
from tooling.checks.faults import trial as trials
from tooling.checks.faults.faults import FAULTS, Fault
from tooling.checks.faults.trial import Trial
from tooling.cluster import demo_data, pretrained
from tooling.cluster.compose import LAUNCHERS
from tooling.cluster.run import writable_folder

FOLDER = CACHE / "faults"
# The timeout of a collective. A job must end within this time plus 30 s.
TIMEOUT_SECONDS = 30
SAVE_STEPS, FAULT_STEP, MAX_STEPS = 10, 14, 40
# The tolerance for the loss of a step after a recovery. Samples, their order and sums are the same as without a
# fault.
LOSS_TOLERANCE = 0.01
RECOVERY_SECONDS = 600.0
TABLE_WIDTH = 120
TRAIN = (
    *("train", "--model_name_or_path=/data/model", "--train_file=/data/train.csv", "--output_dir=/output"),
    *("--bf16", "--do_train", "--per_device_train_batch_size=4", "--max_seq_length=32", "--logging_steps=1"),
    *(f"--max_steps={MAX_STEPS}", f"--save_steps={SAVE_STEPS}", "--save_strategy=steps", "--eval_strategy=no"),
)


@dataclass(frozen=True)
class Row:
    """One line of the table. `steps_lost`: steps trained before the fault and again after it. None: no recovery.

    `loss_apart`: the largest relative difference of a step's loss after the recovery to the same step's loss in
    the baseline job, without a fault.
    """

    fault: str
    launcher: str
    detected_seconds: float | None
    ended_seconds: float
    exit_code: int
    left: tuple[str, ...]
    steps_lost: int | None
    loss_apart: float | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Recovery:
    """How a job resumed: see Row."""

    steps_lost: int
    loss_apart: float


def run(only: str, launcher: str, say: Say) -> None:
    """Injects the chosen faults, writes .cache/faults/faults.json, and prints a table.

    Raises Exit with code 1 if a job did not end or resume as expected.
    """
    chosen = [fault for name, fault in FAULTS.items() if re.search(only, name)]
    launchers = [name for name in LAUNCHERS if launcher in ("", name)]
    if not chosen or not launchers:
        raise UsageError(
            f"no fault matches --only {only!r} and --launcher {launcher!r}: expected some of {', '.join(FAULTS)}, "
            f"and {' or '.join(LAUNCHERS)}"
        )
    rows = []
    with locked(FOLDER / ".lock", lambda: say("waiting for another ./inv dev faults")):
        data = _data(say)
        say("running the baseline job, without a fault")
        baseline = _baseline_losses(data)
        for fault in chosen:
            for name in launchers:
                say(f"{fault.name} under {name}: {fault.description}")
                rows.append(_inject(fault, name, data, baseline))
                say(f"  {describe(rows[-1])}")
    document = {"rows": [{**row.__dict__} for row in rows], "timeout_seconds": TIMEOUT_SECONDS}
    (FOLDER / "faults.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console(TABLE_WIDTH).print(table(rows))
    if any(row.problems for row in rows):
        raise Exit("some faults did not end as expected: see their verdicts", code=1)


def judge(trial: Trial, fault: Fault, recovery: Recovery | None) -> tuple[str, ...]:
    """The problems of a trial and its recovery, in words."""
    problems = []
    if trial.exit_code == 0:
        problems.append("exit code 0")
    if trial.detected_seconds is None and fault.causes[trial.launcher]:
        problems.append("its cause was not reported")
    if trial.ended_seconds > TIMEOUT_SECONDS + 30:
        problems.append("too late")
    if trial.left:
        problems.append("leftovers")
    if recovery is None:
        return (*problems, "no recovery")
    if not 0 <= recovery.steps_lost <= SAVE_STEPS + 1:  # one step may be complete without being reported
        problems.append(f"recovery lost {recovery.steps_lost} steps")
    if recovery.loss_apart > LOSS_TOLERANCE:
        problems.append("different losses after the recovery")
    return tuple(problems)


def losses(printed: str) -> dict[int, float]:
    """The loss of each step in a job's output. If a step was trained twice, the second loss."""
    found = re.findall(rf"step (\d+)/{MAX_STEPS}  loss (\d+\.\d+)", printed)
    return {int(step): float(loss) for step, loss in found}


def largest_difference(some: Mapping[int, float], others: Mapping[int, float]) -> float:
    """The largest relative difference of `some` losses to `others`. Infinite if a step is missing."""
    return max(
        (abs(loss - others[step]) / others[step] if step in others else math.inf for step, loss in some.items()),
        default=math.inf,
    )


def describe(row: Row) -> str:
    """A row, in one line."""
    detected = "-" if row.detected_seconds is None else f"{row.detected_seconds:.1f} s"
    return (
        f"detected after {detected}, ended after {row.ended_seconds:.1f} s with exit code {row.exit_code}, "
        f"left {', '.join(row.left) or 'nothing'}, steps lost {row.steps_lost}, "
        f"loss difference {_percent(row.loss_apart)}: "
        f"{'; '.join(row.problems) or 'good'}"
    )


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table."""
    shown = Table(
        *("fault", "launcher", "detected (s)", "ended (s)", "exit", "left"),
        *("steps lost", "loss difference", "verdict"),
    )
    for row in rows:
        detected = "" if row.detected_seconds is None else f"{row.detected_seconds:.1f}"
        cells = (detected, f"{row.ended_seconds:.1f}", str(row.exit_code), ", ".join(row.left) or "nothing")
        lost = "" if row.steps_lost is None else str(row.steps_lost)
        rest = (lost, _percent(row.loss_apart), "; ".join(row.problems) or "good")
        shown.add_row(row.fault, row.launcher, *cells, *rest)
    return shown


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}%"


def _data(say: Say) -> Path:
    folder = FOLDER / "data"
    if not (folder / "model").is_dir():
        shutil.copytree(pretrained.minilm(say), folder / "model")
    demo_data.write(folder)
    return folder


def _empty_output() -> Path:
    output = FOLDER / "output"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    return output


def _baseline_losses(data: Path) -> dict[int, float]:
    output = writable_folder(_empty_output())
    done = _train(LAUNCHERS[0], (f"--data={data}", f"--output={output}", "--offline"))
    if done is None or len(found := losses(done)) != MAX_STEPS:
        raise UsageError("the baseline job, without a fault, failed: run ./inv demo to find out why")
    return found


def _inject(fault: Fault, launcher: str, data: Path, baseline: Mapping[int, float]) -> Row:
    output = _empty_output()
    options = (f"--data={data}", f"--output={output}", "--offline")
    with trials.small_file_system(output, fault.output_megabytes) as enlarge:
        writable_folder(output)
        limit = TIMEOUT_SECONDS + 60
        ready = rf"step {FAULT_STEP}/"
        command = (*TRAIN, f"--ddp_timeout={TIMEOUT_SECONDS}")
        trial = trials.run(fault, launcher, options, command, ready, limit)
        (FOLDER / f"{fault.name}-{launcher}.txt").write_text(trial.output, encoding="utf-8")
        enlarge()
        recovery = _recover(launcher, options, output, trial.output, baseline)
    return Row(
        fault=fault.name,
        launcher=launcher,
        detected_seconds=trial.detected_seconds,
        ended_seconds=trial.ended_seconds,
        exit_code=trial.exit_code,
        left=trial.left,
        steps_lost=recovery.steps_lost if recovery else None,
        loss_apart=recovery.loss_apart if recovery else None,
        problems=judge(trial, fault, recovery),
    )


def _recover(
    launcher: str, options: Sequence[str], output: Path, printed: str, baseline: Mapping[int, float]
) -> Recovery | None:
    """Resumes the job. None if it fails, or does not resume from a checkpoint."""
    done = _train(launcher, options, "--resume_from_checkpoint=true")
    if done is None:
        return None
    result = json.loads((output / "result.json").read_text(encoding="utf-8"))
    if result["steps"] != MAX_STEPS or not result["resumed_from"]:
        return None
    reached = max(losses(printed))
    resumed_at = int(Path(result["resumed_from"]).name.rpartition("-")[2])
    return Recovery(steps_lost=reached - resumed_at, loss_apart=largest_difference(losses(done), baseline))


def _train(launcher: str, options: Sequence[str], *arguments: str) -> str | None:
    """The output of a job. None if the job fails."""
    argv = [str(ROOT / "inv"), "up", "--name=fault-recovery", f"--launcher={launcher}", *options]
    try:
        done = subprocess.run(
            [*argv, "--", *TRAIN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=RECOVERY_SECONDS,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
