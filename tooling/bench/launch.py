"""`./inv bench launch`: one training loop, as each launcher starts it, in turn: a disturbance meets all."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from invoke.exceptions import Exit
from rich.console import Console
from rich.table import Table

from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE, ROOT
from tooling.basis.say import Say
from tooling.engine import api
from tooling.engine import docker as container
from tooling.image import build
from tooling.pins import parse

FOLDER = CACHE / "bench"
SCRIPT = "/data/throughput.py"
ROUNDS = 5
LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class Way:
    """One way to start the loop. `is_baseline`: the others are compared with it."""

    name: str
    command: tuple[str, ...]
    is_baseline: bool = False


def ways(ranks: int) -> list[Way]:
    """`ranks` ranks, and one with all cores: what run_cpu starts, which makes no process group."""
    per_node = f"--nproc-per-node={ranks}"
    launch = ("launch", per_node, "--", "run", "--quiet")
    return [
        Way(f"torchrun, {ranks} ranks", ("torchrun", per_node, SCRIPT), is_baseline=True),
        Way(f"launch, {ranks} ranks, gloo", (*launch, "--backend=gloo", SCRIPT)),
        Way(f"launch, {ranks} ranks, ccl", (*launch, "--backend=ccl", SCRIPT)),
        Way("run_cpu, 1 rank", ("python", "-m", "torch.backends.xeon.run_cpu", SCRIPT), is_baseline=True),
        Way("run, 1 rank", ("run", "--quiet", SCRIPT)),
    ]


def run(pin_name: str | None, ranks: int, rounds: int, options: Sequence[str], as_json: bool, say: Say) -> None:
    """Measures each way `rounds` times; prints a table or the document and writes .cache/bench/launch-TIME.json.

    `options` go to the loop. Raises Exit where a job failed.
    """
    if ranks < 2 or rounds < 1:
        raise UsageError(f"bench: --ranks {ranks} --rounds {rounds}, expected 2 ranks or more, 1 round or more")
    pin = parse.load().pin(pin_name)
    docker = api.ensure(say)
    image = build.build(pin, say)
    found: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ways(ranks)}
    for number in range(1, rounds + 1):
        for way in ways(ranks):
            one = measure(pin.image, way, options)
            say(f"round {number} of {rounds}: {way.name}: {one['samples_per_second']:.1f} samples/s")
            found[way.name].append(one)
    now = datetime.now(UTC)
    result = rows(ways(ranks), found)
    document = {
        "date": now.isoformat(timespec="seconds"),
        "image": image.id,
        "cpus": docker.cpus,
        "options": list(options),
        "rows": result,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"launch-{now:%Y%m%dT%H%M%SZ}.json"
    text = json.dumps(document, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")
    if as_json:
        sys.stdout.write(text)
    else:
        Console().print(table(result))
    say(f"wrote {path}")


def measure(image: str, way: Way, options: Sequence[str]) -> dict[str, Any]:
    """What the loop says of itself. Raises Exit with its output where it fails."""
    mount = ("--volume", f"{ROOT / 'examples'}:/data:ro")
    done = container.run(
        image, (*way.command, *options), mount, subprocess.PIPE, subprocess.PIPE, limit_seconds=LIMIT_SECONDS
    )
    lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(lines) != 1:
        sys.stderr.buffer.write(done.stdout + done.stderr)
        raise Exit(f"bench failed: {way.name} ended with code {done.returncode}", code=done.returncode or 1)
    report: dict[str, Any] = json.loads(lines[0])
    return report


def rows(chosen: Sequence[Way], found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Per way the median speed, its range, its ratio to each baseline, and what the loop had.

    A ratio is the median of the rounds' own ratios: what slows a whole round does not count.
    """
    speeds = {name: [one["samples_per_second"] for one in reports] for name, reports in found.items()}
    baselines = [way.name for way in chosen if way.is_baseline]
    return [
        {
            "way": way.name,
            "samples_per_second": round(statistics.median(speeds[way.name]), 2),
            "samples_per_second_rounds": [round(speed, 2) for speed in speeds[way.name]],
            "ratio_to": {name: round(ratio(speeds[way.name], speeds[name]), 3) for name in baselines},
            **{key: found[way.name][0][key] for key in ("ranks", "backend", "threads", "cpus", "preloads")},
        }
        for way in chosen
    ]


def ratio(speeds: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(speed / other for speed, other in zip(speeds, others, strict=True))


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """One row a way."""
    baselines = list(found[0]["ratio_to"])
    shown = Table(
        "started by", "threads", "CPUs", "preloads", "samples/s", "range", *(f"to {b}" for b in baselines)
    )
    for row in found:
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
