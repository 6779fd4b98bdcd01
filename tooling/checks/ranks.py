"""`./inv dev ranks`: trains in many ways with one rank and with two, without and with accumulation, and compares.

The scripts are in tests/image/scripts/ways. Each step has the same eight rows, so losses, norms of the gradients
and weights have to be equal.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.console import console
from tooling.basis.paths import CACHE, ROOT, shown
from tooling.engine import api, docker
from tooling.image.choice import Choice

SCRIPTS = ROOT / "tests" / "image" / "scripts" / "ways"
FOLDER = CACHE / "ranks"
MODULES = ("heads", "own", "adapters", "libraries")
LIBRARIES = ("sentence-transformers", "trl")
RANKS = (1, 2)
# Of sums in another order. bf16 adds its rounding.
TOLERANCE = 1e-4
# `run` prints it where it leaves the scale of a script's own loss to the script.
WARNING = "may scale the loss itself"
LIMIT_SECONDS = 1800.0


@dataclass(frozen=True)
class WayRow:
    """One way to train. `loss`, `norm`: of its first step, with one rank and no accumulation.

    `differences`: the largest relative difference from that run, by "ranks x steps". `warnings`: what `run`
    printed because it cannot know the scale. `errors`: of the runs.
    """

    way: str
    loss: float
    norm: float
    differences: Mapping[str, float]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether all numbers are equal, or one line warns that they may not be."""
        is_equal = all(found <= TOLERANCE for found in self.differences.values())
        return not self.errors and (is_equal or bool(self.warnings))


def compare(
    image: str, modules: Sequence[str], ways: Sequence[str] = (), mounts: Sequence[str] = ()
) -> list[WayRow]:
    """Train in the ways of the modules, or in these ways only, with each number of ranks."""
    found = {ranks: _train(image, ranks, modules, ways, mounts) for ranks in RANKS}
    return [_row(way, {ranks: found[ranks][way] for ranks in RANKS}) for way in found[1]]


def _train(
    image: str, ranks: int, modules: Sequence[str], ways: Sequence[str], mounts: Sequence[str]
) -> dict[str, Any]:
    """What main.py wrote: by way and steps. The log is .cache/ranks/RANKS.log."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    FOLDER.chmod(0o777)  # the container's user is another one
    result, log = FOLDER / f"{ranks}.json", FOLDER / f"{ranks}.log"
    result.unlink(missing_ok=True)
    command = ["launch", "--nproc-per-node", str(ranks), "--", "run", "--timeout", "60", "/ways/main.py"]
    command += [f"/output/{result.name}", ",".join(modules), *([";".join(ways)] if ways else [])]
    volumes = [f"--volume={SCRIPTS}:/ways:ro", f"--volume={FOLDER}:/output", "--env=OMP_NUM_THREADS=1", *mounts]
    with log.open("wb") as stream:
        done = docker.run(image, command, volumes, stream, subprocess.STDOUT, LIMIT_SECONDS)
    if done.returncode or not result.exists():
        raise UsageError(f"{ranks} ranks ended with exit code {done.returncode}: see {shown(log)}")
    document: dict[str, Any] = json.loads(result.read_text())
    return document


def _row(way: str, found: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> WayRow:
    runs = {f"{ranks} x {steps}": run for ranks, of_steps in found.items() for steps, run in of_steps.items()}
    lines = sorted({line for run in runs.values() for line in run["lines"] if WARNING in line})
    errors = sorted({run["error"] for run in runs.values() if "error" in run})
    if errors:
        return WayRow(way, float("nan"), float("nan"), {}, tuple(lines), tuple(errors))
    first = runs.pop("1 x 1")
    differences = {name: _difference(run, first) for name, run in runs.items()}
    return WayRow(way, first["losses"][0], first["norms"][0], differences, tuple(lines), ())


def _difference(run: Mapping[str, Any], first: Mapping[str, Any]) -> float:
    """The largest relative difference of the losses, the norms and the weights. Small numbers count as 0.001."""
    numbers, expected = ([*one["losses"], *one["norms"], one["weights"]] for one in (run, first))
    if len(numbers) != len(expected):
        return float("inf")
    pairs = zip(numbers, expected, strict=True)
    return max(float(abs(ours - theirs) / max(abs(theirs), 1e-3)) for ours, theirs in pairs)


def run(pin: str | None, only: Sequence[str], as_json: bool) -> None:
    """Build the image with the libraries, compare, print the table and write .cache/ranks/rows.json.

    Raises Exit with code 1 if a way has other numbers on two ranks, and no warning.
    """
    _, image = Choice(pin, with_=LIBRARIES, engine=api.DOCKER).ensure()
    started = time.monotonic()
    rows = compare(image.id, MODULES, only)
    if not rows:
        raise UsageError(f"no way to train is called {' or '.join(map(repr, only))}: see {shown(SCRIPTS)}")
    document = json.dumps([asdict(row) for row in rows], indent=1)
    (FOLDER / "rows.json").write_text(document + "\n", encoding="utf-8")
    if as_json:
        print(document)
    else:
        console(180).print(_table(rows))
    wrong = [row.way for row in rows if not row.is_right]
    say(f"{len(rows)} ways to train, {len(wrong)} with other numbers, in {time.monotonic() - started:.0f} s")
    if wrong:
        raise Exit(f"not as on one rank, without a warning: {', '.join(wrong)}", code=1)


def _table(rows: Sequence[WayRow]) -> Table:
    shapes = ("1 x 4", "2 x 1", "2 x 4")
    table = Table("way to train", "loss", "norm", *shapes, "warning or error", title_justify="left")
    table.title = "the largest difference of losses, norms and weights from 1 rank x 1 step, by ranks x steps"
    for row in rows:
        cells = [f"{row.differences[shape]:.0e}" if shape in row.differences else "" for shape in shapes]
        said = "; ".join((*row.errors, *(line.partition("): ")[2] for line in row.warnings)))
        table.add_row(row.way, f"{row.loss:.4f}", f"{row.norm:.4f}", *cells, said)
    return table
