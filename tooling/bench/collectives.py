"""`./inv bench`: measurements in containers of the image, as JSON, a table and a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit
from rich.console import Console

from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE
from tooling.basis.say import Say
from tooling.bench import plots, report
from tooling.cluster import run
from tooling.cluster.compose import ClusterSpec, Mount
from tooling.engine import api
from tooling.engine.api import Engine
from tooling.image import build
from tooling.pins import parse

FOLDER = CACHE / "bench"
CLUSTER = "bench"
# What DDP does at every step: the picture is of this one, the table of all.
PLOTTED = "all_reduce"


def collectives(
    pin_name: str | None,
    nodes: int,
    ranks: int,
    options: Sequence[str],
    output: str | None,
    as_json: bool,
    say: Say,
) -> None:
    """Measures in one container with `ranks` ranks, then between `nodes` containers with one rank each.

    `options` go to the image's own `bench`. Writes collectives-TIME.json and .png into `output`,
    prints a table or, with `as_json`, the document. Raises Exit with the cluster's code if a measurement failed.
    """
    if nodes < 1:
        raise UsageError(f"bench: --nodes is {nodes}, expected 2 or more, or 1 for the one container alone")
    if ranks < 2:
        raise UsageError(f"bench: --ranks is {ranks}, expected 2 or more: a single rank has no peer")
    folder = output_folder(output)
    pin = parse.load().pin(pin_name)
    docker = api.ensure(say)
    image = build.build(pin, say)
    documents = []
    for node_count, ranks_per_node in ((1, ranks), *([(nodes, 1)] if nodes > 1 else [])):
        say(f"measuring {ranks_per_node} rank(s) on each of {node_count} container(s)")
        spec = ClusterSpec(CLUSTER, pin.image, node_count, ranks_per_node, ("bench", "collectives", *options))
        documents.append(measure(spec, docker, say))
    now = datetime.now(UTC)
    facts = {"date": now.isoformat(timespec="seconds"), "image": image.id, "cpus": docker.cpus}
    document = report.merge(documents, facts)
    stem = folder / f"collectives-{now:%Y%m%dT%H%M%SZ}"
    text = json.dumps(document, indent=2) + "\n"
    stem.with_suffix(".json").write_text(text, encoding="utf-8")
    if any(row["collective"] == PLOTTED for row in document["rows"]):
        plots.collectives(document, PLOTTED, stem.with_suffix(".png"))
    if as_json:
        sys.stdout.write(text)
    else:
        Console().print(report.table(document))
    say(f"wrote {stem}.json and .png")


def options_of(sizes: str | None, seconds: float) -> list[str]:
    """The arguments of the image's own `bench`."""
    return [f"--seconds={seconds:g}", *([f"--sizes={sizes}"] if sizes is not None else [])]


def measure(spec: ClusterSpec, docker: Engine, say: Say) -> dict[str, Any]:
    """The document that rank 0 of a cluster wrote whose command is the image's own `bench`. Raises Exit with the
    cluster's code if that failed."""
    shared = run.writable_folder(run.folder_of(spec.name) / "output")
    result = shared / "result.json"
    result.unlink(missing_ok=True)
    measured = replace(
        spec,
        command=(*spec.command, f"--output=/output/{result.name}"),
        mounts=(Mount(shared, "/output", read_only=False),),
        offline=True,
    )
    outcome = run.run(measured, docker, say, shown=sys.stderr.buffer)
    if outcome.exit_code != 0:
        raise Exit(f"bench failed: the cluster ended with code {outcome.exit_code}", code=outcome.exit_code)
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return document


def output_folder(output: str | None) -> Path:
    folder = Path(output) if output else FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"bench: --output {output}: {error.strerror}: choose a folder that you may write to"
        ) from None
    return folder
