"""`./inv bench launch`: one training loop under each launcher.

The launchers take turns, so that a disturbance of the machine affects all of them.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import MOST
from cpu_train_stack.cli.say import say
from tooling.basis.console import JsonOption
from tooling.basis.figures import terminal_table
from tooling.basis.paths import ROOT
from tooling.bench import report, runner
from tooling.bench.runner import Container
from tooling.cluster.spec import Mount
from tooling.image.choice import Choice

SCRIPT = f"{contract.DATA}/throughput.py"
# The script's batch, which its ranks share.
BATCH = 16
COLUMNS = {
    "started by": "{way}",
    "threads": "{threads}",
    "CPUs": "{cpus}",
    "preloads": "{preloads}",
    "samples/s": "{samples_per_second}",
    "range": "{samples_per_second_rounds:range}",
}


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
    arguments = [f"--steps={options.steps}"]
    folder = report.folder()
    engine, image = options.choice.ensure()
    chosen = launchers(options.ranks)
    reports: dict[str, list[dict[str, Any]]] = {launcher.name: [] for launcher in chosen}
    for number in range(1, options.rounds + 1):
        for launcher in chosen:
            # torchrun's own ranks, without this project's plan and process group
            variables = {contract.TORCHRUN: "plain"} if launcher.is_baseline else {}
            mounts = (Mount(ROOT / "examples", contract.DATA),)
            container = Container(engine, image.id, mounts=mounts, variables=variables)
            try:
                found = runner.run(container, (*launcher.command, *arguments), "launch")
            except runner.RunError as failure:
                raise Exit(f"bench failed: {launcher.name}: {failure}", code=failure.code) from None
            speed = found["samples_per_second"]
            say(f"round {number} of {options.rounds}: {launcher.name}: {speed:.1f} samples/s")
            reports[launcher.name].append(found)
    document = {**report.facts(engine, image), "options": arguments, "rows": rows(chosen, reports)}
    report.publish("launch", document, folder, table, None, options.json)


def rows(chosen: Sequence[StartedBy], reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The median speed of each launcher, its ratio to each baseline, and the settings of the loop."""
    speeds = {name: [one["samples_per_second"] for one in rounds] for name, rounds in reports.items()}
    baselines = [launcher.name for launcher in chosen if launcher.is_baseline]
    return [
        {
            "way": launcher.name,
            "samples_per_second": round(statistics.median(speeds[launcher.name]), 2),
            "samples_per_second_rounds": [round(speed, 2) for speed in speeds[launcher.name]],
            "ratio_to": {name: report.ratio(speeds[launcher.name], speeds[name]) for name in baselines},
            **{key: reports[launcher.name][0][key] for key in ("ranks", "backend", "threads", "cpus", "preloads")},
        }
        for launcher in chosen
    ]


def table(document: report.Document) -> Table:
    """A row for each launcher, with a column for each baseline."""
    compared = {f"vs. {name}": f"{{ratio_to[{name}]}}" for name in document["rows"][0]["ratio_to"]}
    return terminal_table({**COLUMNS, **compared}, document["rows"])
