"""`./inv bench launch`: one training loop under each launcher.

The launchers take turns, so that a disturbance of the machine affects all of them.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack import contract
from tooling.basis.console import JsonOption
from tooling.basis.errors import MOST, UsageError
from tooling.basis.paths import ROOT
from tooling.basis.say import say
from tooling.bench import output
from tooling.bench.measure import Container
from tooling.cluster.compose import Mount
from tooling.engine.api import Engine
from tooling.image.choice import Choice

SCRIPT = f"{contract.DATA}/throughput.py"
LIMIT_SECONDS = 600.0
# The script's batch, which its ranks share.
BATCH = 16


@dataclass(frozen=True)
class StartedBy:
    """One way to start the loop. The other launchers are compared with those that have `is_baseline`."""

    name: str
    command: tuple[str, ...]
    is_baseline: bool = False


def launchers(ranks: int) -> list[StartedBy]:
    """Launchers of `ranks` ranks, and of one rank with all cores: run_cpu creates no process group."""
    per_node = f"--nproc-per-node={ranks}"
    launch = ("launch", per_node, "--", "run", "--quiet")
    return [
        StartedBy(f"torchrun, {ranks} ranks", ("torchrun", per_node, SCRIPT), is_baseline=True),
        StartedBy(f"launch, {ranks} ranks, gloo", (*launch, "--backend=gloo", SCRIPT)),
        StartedBy(f"launch, {ranks} ranks, ccl", (*launch, "--backend=ccl", SCRIPT)),
        StartedBy("run_cpu, 1 rank", ("python", "-m", "torch.backends.xeon.run_cpu", SCRIPT), is_baseline=True),
        StartedBy("run, 1 rank", ("run", "--quiet", SCRIPT)),
    ]


@dataclass(frozen=True)
class StartOptions:
    """The options of `./inv bench launch`. Raises UsageError."""

    choice: Choice
    ranks: Annotated[int, "ranks that launch and torchrun start"] = 2
    rounds: Annotated[int, "number of rounds; each round measures every launcher once"] = 5
    steps: Annotated[int, "training steps in each measurement"] = 10
    json: JsonOption = False

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= BATCH or not (0 < self.rounds <= MOST and 0 < self.steps <= MOST):
            raise UsageError(
                f"bench: --ranks {self.ranks} --rounds {self.rounds} --steps {self.steps}, "
                f"expected 2 to {BATCH} ranks, 1 to {MOST} rounds, 1 to {MOST} steps"
            )


def run(options: StartOptions) -> None:
    """Measure each launcher in every round. Write .cache/bench/launch-TIME.json and print the result.

    Raises Exit if a job fails.
    """
    loop_arguments = [f"--steps={options.steps}"]
    folder = output.folder()
    engine, image = options.choice.ensure()
    reports: dict[str, list[dict[str, Any]]] = {launcher.name: [] for launcher in launchers(options.ranks)}
    for number in range(1, options.rounds + 1):
        for launcher in launchers(options.ranks):
            report = measure(engine, image.id, launcher, loop_arguments)
            speed = report["samples_per_second"]
            say(f"round {number} of {options.rounds}: {launcher.name}: {speed:.1f} samples/s")
            reports[launcher.name].append(report)
    document = {
        **output.facts(engine, image),
        "options": loop_arguments,
        "rows": rows(launchers(options.ranks), reports),
    }
    output.publish("launch", document, folder, table, None, options.json)


def measure(engine: Engine, image: str, launcher: StartedBy, options: Sequence[str]) -> dict[str, Any]:
    """The report that the loop prints. Raises Exit if the loop fails, after its output, or takes too long."""
    # torchrun's own ranks, without this project's plan and process group
    variables = (f"{contract.TORCHRUN}=plain",) if launcher.is_baseline else ()
    container = Container(engine, image, mounts=(Mount(ROOT / "examples", contract.DATA),), variables=variables)
    try:
        done = container.run((*launcher.command, *options), LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise Exit(f"bench failed: {launcher.name} did not end within {LIMIT_SECONDS:.0f} s", code=1) from None
    lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(lines) != 1:
        sys.stderr.buffer.write(done.stdout + done.stderr)
        raise Exit(
            f"bench failed: {launcher.name} ended with exit code {done.returncode}", code=done.returncode or 1
        )
    report: dict[str, Any] = json.loads(lines[0])
    return report


def rows(chosen: Sequence[StartedBy], reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The median speed of each launcher, its range, its ratio to each baseline, and the settings of the loop.

    A ratio is the median of the ratios of all rounds: a slow round has no effect.
    """
    speeds = {name: [report["samples_per_second"] for report in rounds] for name, rounds in reports.items()}
    baselines = [launcher.name for launcher in chosen if launcher.is_baseline]
    return [
        {
            "way": launcher.name,
            "samples_per_second": round(statistics.median(speeds[launcher.name]), 2),
            "samples_per_second_rounds": [round(speed, 2) for speed in speeds[launcher.name]],
            "ratio_to": {name: round(ratio(speeds[launcher.name], speeds[name]), 3) for name in baselines},
            **{key: reports[launcher.name][0][key] for key in ("ranks", "backend", "threads", "cpus", "preloads")},
        }
        for launcher in chosen
    ]


def ratio(speeds: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of all rounds."""
    return statistics.median(speed / other for speed, other in zip(speeds, others, strict=True))


def table(document: output.Document) -> Table:
    """A row for each launcher."""
    baselines = list(document["rows"][0]["ratio_to"])
    shown = Table(
        "started by", "threads", "CPUs", "preloads", "samples/s", "range", *(f"vs. {name}" for name in baselines)
    )
    for row in document["rows"]:
        speeds = row["samples_per_second_rounds"]
        shown.add_row(
            row["way"],
            str(row["threads"]),
            str(row["cpus"]),
            ", ".join(row["preloads"]) or "none",
            f"{row['samples_per_second']:.1f}",
            f"{min(speeds):.1f} to {max(speeds):.1f}",
            *(f"{row['ratio_to'][name]:.2f}" for name in baselines),
        )
    return shown
