"""`./inv dev faults`: injects every fault into real training under both launchers, and resumes."""

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

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from cpu_train_stack.cli.say import say
from tooling.basis.console import console
from tooling.basis.paths import CACHE, ROOT
from tooling.checks.faults.faults import FAULTS, Fault
from tooling.checks.faults.trial import Trial, inject, small_file_system
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
COLUMNS = (
    *("fault", "launcher", "detected (s)", "ended (s)", "exit", "left"),
    *("steps lost", "loss difference", "verdict"),
)
TRAIN = (
    *("train", "--model_name_or_path=/data/model", "--train_file=/data/train.csv", "--output_dir=/output"),
    *("--bf16", "--do_train", "--per_device_train_batch_size=4", "--max_seq_length=32", "--logging_steps=1"),
    *(f"--max_steps={MAX_STEPS}", f"--save_steps={SAVE_STEPS}", "--save_strategy=steps", "--eval_strategy=no"),
)


@dataclass(frozen=True)
class Recovery:
    """How a job resumed. `steps_lost`: steps trained before the fault and again after it.

    `loss_apart`: the largest relative difference of a step's loss after the recovery to the same step's loss in
    the baseline job, without a fault.
    """

    steps_lost: int
    loss_apart: float


@dataclass(frozen=True)
class Result:
    """A fault under one launcher. `recovery` is None if the job did not resume."""

    trial: Trial
    recovery: Recovery | None
    problems: tuple[str, ...]

    def row(self) -> dict[str, object]:
        """The result in faults.json."""
        recovery = vars(self.recovery) if self.recovery else {"steps_lost": None, "loss_apart": None}
        values = {name: value for name, value in vars(self.trial).items() if name != "output"}
        return {**values, **recovery, "problems": self.problems}

    def cells(self) -> list[str]:
        """The result in the table."""
        trial, recovery = self.trial, self.recovery
        return [
            trial.fault,
            trial.launcher,
            "" if trial.detected_seconds is None else f"{trial.detected_seconds:.1f}",
            f"{trial.ended_seconds:.1f}",
            str(trial.exit_code),
            ", ".join(trial.left) or "nothing",
            str(recovery.steps_lost) if recovery else "",
            f"{100 * recovery.loss_apart:.2f}%" if recovery else "",
            "; ".join(self.problems) or "good",
        ]


def run(only: str, launcher: str) -> None:
    """Inject the chosen faults, write .cache/faults/faults.json, and print a table.

    Raises Exit with code 1 if a job did not end or resume as expected.
    """
    try:
        chosen = [fault for name, fault in FAULTS.items() if re.search(only, name)]
    except re.error as error:
        raise UsageError(f"--only {only!r} is not a regular expression: {error}") from None
    launchers = [name for name in LAUNCHERS if launcher in ("", name)]
    if not chosen or not launchers:
        raise UsageError(
            f"no fault matches --only {only!r} and --launcher {launcher!r}: expected one or more of "
            f"{', '.join(FAULTS)}, and {' or '.join(LAUNCHERS)}"
        )
    results = []
    with locked(FOLDER / ".lock", lambda: say("waiting for another ./inv dev faults")):
        data = _data()
        say("running the baseline job, without a fault")
        baseline = _baseline_losses(data)
        for fault in chosen:
            for name in launchers:
                say(f"{fault.name} under {name}: {fault.description}")
                results.append(_try(fault, name, data, baseline))
                cells = zip(COLUMNS[2:], results[-1].cells()[2:], strict=True)
                say("  " + ", ".join(f"{column}: {cell or 'none'}" for column, cell in cells))
    document = {"rows": [result.row() for result in results], "timeout_seconds": TIMEOUT_SECONDS}
    (FOLDER / "faults.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    table = Table(*COLUMNS)
    for result in results:
        table.add_row(*result.cells())
    console(TABLE_WIDTH).print(table)
    if any(result.problems for result in results):
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


def _data() -> Path:
    folder = FOLDER / "data"
    if not (folder / "model").is_dir():
        shutil.copytree(pretrained.minilm(), folder / "model")
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


def _try(fault: Fault, launcher: str, data: Path, baseline: Mapping[int, float]) -> Result:
    output = _empty_output()
    options = (f"--data={data}", f"--output={output}", "--offline")
    with small_file_system(output, fault.output_megabytes) as enlarge:
        writable_folder(output)
        limit = TIMEOUT_SECONDS + 60
        ready = rf"step {FAULT_STEP}/"
        command = (*TRAIN, f"--ddp_timeout={TIMEOUT_SECONDS}")
        trial = inject(fault, launcher, options, command, ready, limit)
        (FOLDER / f"{fault.name}-{launcher}.txt").write_text(trial.output, encoding="utf-8")
        enlarge()
        recovery = _recover(launcher, options, output, trial.output, baseline)
    return Result(trial, recovery, judge(trial, fault, recovery))


def _recover(
    launcher: str, options: Sequence[str], output: Path, printed: str, baseline: Mapping[int, float]
) -> Recovery | None:
    """Resume the job. None if it fails, or does not resume from a checkpoint."""
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
